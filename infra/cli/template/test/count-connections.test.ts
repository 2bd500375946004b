// npx tsx --test test/*.test.ts
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { openTestbed, type Testbed } from 'cronce/testing';
import { countConnections } from '../functions/jobs/count-connections.ts';

let bed: Testbed;
before(async () => void (bed = await openTestbed()));
after(async () => bed.close());

test('counts at least its own connection', async () => {
  const run = await bed.run(countConnections);
  assert.equal(run.status, 'succeeded');
  assert.ok((run.output as { connections: number }).connections >= 1);
});
