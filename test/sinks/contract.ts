/** What every sink keeps to, whatever it speaks: tried on a server of its own that behaves as it is told. */
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { RunRecord } from '../../src/run.ts';
import type { Refusal, Sink, Wanted } from '../../src/sinks/sink.ts';

/** How the other side answers for a record, by its id. */
export type Behaviour = (id: string) => 'take' | 'refuse' | 'hang' | 'hang up';

export interface Stand {
  /** A sink before it. */
  readonly sink: (wanted?: Wanted) => Sink;
  /** Ids that have arrived there, in their order. */
  readonly arrived: readonly string[];
  readonly behave: (behaviour: Behaviour) => void;
  readonly stop: () => Promise<void>;
}

export function recordOf(changes: Partial<RunRecord> = {}): RunRecord {
  const record: Partial<RunRecord> = {
    id: randomUUID(),
    deployment: 'shop-prod',
    job: 'tidy',
    slot: '2026-11-29T12:00:00Z',
    scheduledFor: '2026-11-29T12:00:00.000Z',
    status: 'succeeded',
    skipReason: null,
    attempt: 1,
    maxAttempts: 3,
    final: true,
    params: null,
    output: null,
    error: null,
    receivedAt: '2026-11-29T12:00:00.000Z',
    finishedAt: '2026-11-29T12:00:01.000Z',
    ...changes,
  };
  return record as RunRecord;
}

export function keepsToTheContract(name: string, open: () => Promise<Stand>): void {
  describe(`${name} keeps to the contract of sinks`, () => {
    let stand: Stand;
    beforeAll(async () => void (stand = await open()));
    afterAll(async () => stand.stop());

    async function send(records: readonly RunRecord[], signal = AbortSignal.timeout(5_000)) {
      const refused = new Map<string, Refusal>();
      const arrived = await stand
        .sink()
        .send(records, signal, (id, refusal) => void refused.set(id, refusal))
        .catch((error: unknown) => error);
      return { arrived: arrived instanceof Set ? [...(arrived as Set<string>)].sort() : arrived, refused };
    }

    const ids = (records: readonly RunRecord[]) => records.map(({ id }) => id).sort();
    const three = () => [recordOf(), recordOf({ status: 'failed' }), recordOf()] as const;

    it('what has arrived it says, all of it', async () => {
      stand.behave(() => 'take');
      const records = three();
      const { arrived, refused } = await send(records);
      expect([arrived, refused.size]).toEqual([ids(records), 0]);
      expect(stand.arrived.slice(-3).toSorted()).toEqual(ids(records));
    });

    it('one that is refused keeps none of the others back, and has its reason', async () => {
      const [first, second, third] = three();
      stand.behave((id) => (id === second.id ? 'refuse' : 'take'));
      const { arrived, refused } = await send([first, second, third]);
      expect([arrived, [...refused.keys()]]).toEqual([ids([first, third]), [second.id]]);
      expect(refused.get(second.id)).toEqual({
        code: expect.any(String) as string,
        message: expect.any(String) as string,
      });
    });

    it.each(['refuse', 'hang up'] as const)(
      'where all meet %s, none has arrived, and each or the whole says why',
      async (how) => {
        stand.behave(() => how);
        const records = three();
        const { arrived, refused } = await send(records);
        if (arrived instanceof Error) expect(arrived.message).not.toBe('');
        else expect([arrived, [...refused.keys()].sort()]).toEqual([[], ids(records)]);
      },
    );

    it('heeds its signal', async () => {
      stand.behave(() => 'hang');
      const began = performance.now();
      const { arrived } = await send(three(), AbortSignal.timeout(150));
      expect(performance.now() - began).toBeLessThan(2_000);
      expect(arrived instanceof Error || (arrived as string[]).length === 0).toBe(true);
      stand.behave(() => 'take');
      const again = recordOf();
      expect((await send([again])).arrived).toEqual([again.id]);
    });

    it('asks nobody for nothing', async () => {
      const before = stand.arrived.length;
      expect((await send([])).arrived).toEqual([]);
      expect(stand.arrived).toHaveLength(before);
    });

    it('has a name that stays, and no secret in it', () => {
      const [one, other] = [stand.sink(), stand.sink()];
      expect([one.name, one.name.includes('secret')]).toEqual([other.name, false]);
    });

    it.each<[string, Wanted, Partial<RunRecord>, boolean]>([
      ['all, unless told', {}, { status: 'skipped' }, true],
      ['an outcome that is named', { outcomes: ['failed', 'lost'] }, { status: 'lost' }, true],
      ['none that is not', { outcomes: ['failed', 'lost'] }, { status: 'succeeded' }, false],
      ['a job that is named', { jobs: ['tidy'] }, {}, true],
      ['none that is not', { jobs: ['other'] }, {}, false],
      ['what is final', { final: true }, { status: 'failed', final: true }, true],
      ['nothing that is tried again', { final: true }, { status: 'failed', final: false }, false],
      ['a skip, which is as final as can be', { final: true }, { status: 'skipped', final: null }, true],
      ['what meets all that is said', { outcomes: ['failed'], jobs: ['other'] }, { status: 'failed' }, false],
    ])('wants %s', (_, wanted, changes, expected) => {
      expect(stand.sink(wanted).wants?.(recordOf(changes))).toBe(expected);
    });
  });
}
