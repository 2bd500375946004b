/** What a user does with a checkout of their own, from a fresh clone on. One copy for all, in the order of a first day. */
import { execFile } from 'node:child_process';
import { request } from 'node:http';
import { readFile, rm, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { RunRecord } from '../../../src/run.ts';
import {
  checkout,
  cleanUp,
  freePlace,
  cli,
  osls,
  root,
  run,
  until,
  untilUp,
  type Place,
  type Running,
} from '../../support/local.ts';

/** Of the framework's own dependency. */
interface Zip {
  readonly loadAsync: (
    bytes: Buffer,
  ) => Promise<{ files: Record<string, { async: (kind: 'string') => Promise<string> }> }>;
}

/** On a busy machine a start takes tens of seconds. */
const longMs = 240_000;

let folder: string;
beforeAll(async () => void (folder = await checkout()));
afterAll(async () => {
  await cleanUp();
  await rm(folder, { recursive: true, force: true });
}, longMs);

describe('I5: the framework’s own commands in a fresh clone', { timeout: longMs }, () => {
  it('I5, I6: invoke local builds first; an error has its own name, though the bundle is minified', async () => {
    const invoked = run([osls, 'invoke', 'local', '-f', 'expire-sessions'], { cwd: folder });
    expect(await invoked.ended).toBe(1);
    expect(JSON.parse(jsonIn(await invoked.stdout))).toMatchObject({
      errorType: 'SettingsError',
      errorMessage: 'DATABASE_URL is not set; give a postgres:// URL',
    });
  });

  it('I5: package takes what the files say now, not what was built before', async () => {
    await edit('functions/jobs/expire-sessions.ts', 'Deletes sessions', 'Now edited, deletes sessions');
    expect(await run([osls, 'package'], { cwd: folder }).ended).toBe(0);
    expect(await packaged()).toContain('Now edited, deletes sessions');
  });

  it('I5: offline builds first, and what it cannot build it says', async () => {
    await rm(join(folder, '.build'), { recursive: true });
    const place = await freePlace();
    const ports = ['--httpPort', String(place.port), '--lambdaPort', String(place.lambdaPort)];
    const offline = run([osls, 'offline', ...ports], { cwd: folder });
    const answer = await until(async () => fetch(`${place.url}/jobs`), offline.ended);
    expect([answer.status, await answer.json()]).toMatchObject([503, { code: 'settings' }]);
    await cleanUp();

    await edit('functions/sweep.ts', 'export const handler', 'export konst handler');
    const broken = run([osls, 'offline', ...ports], { cwd: folder });
    expect(await broken.ended).toBe(1);
    const said = (await broken.stdout) + (await broken.stderr);
    expect(said).toMatch(/build: functions\/sweep\.ts:\d+:\d+: /);
    expect(said).not.toMatch(/\n\s+at /);
    await edit('functions/sweep.ts', 'export konst handler', 'export const handler');
  });

  async function packaged(): Promise<string> {
    const zip = createRequire(osls)('jszip') as Zip;
    const { files } = await zip.loadAsync(await readFile(join(folder, '.serverless/cronce.zip')));
    const modules = Object.entries(files).filter(([name]) => name.endsWith('.js'));
    return (await Promise.all(modules.map(async ([, file]) => file.async('string')))).join('\n');
  }
});

it('I1: README’s clean-up leaves a project that starts, without any job', { timeout: longMs }, async () => {
  const commands = /```sh\n(rm -r functions\/jobs[^`]*)```/.exec(
    await readFile(join(root, 'README.md'), 'utf8'),
  );
  await promisify(execFile)('/bin/sh', ['-euc', commands?.[1] ?? 'exit 9'], { cwd: folder });
  const place = await freePlace();
  const start = run([...cli, 'dev', ...place.flags], { cwd: folder });
  await untilUp(place, start);
  expect(await asked(place, '/jobs')).toEqual({ jobs: [] });
  start.process.kill('SIGTERM');
  expect([await start.ended, await start.stderr]).toEqual([0, '']);
  expect(await start.stdout).toContain('There is no job yet. Put one in functions/jobs/');
});

describe('with jobs of one’s own', { timeout: longMs }, () => {
  beforeAll(async () => {
    await declare('flaky', `throw new Error('no \\u001b[31mred\\u0007 \\u009b \\u202ereversed');`);
    await declare('slow', `await sleep(600_000, undefined, { signal });`);
    await writeFile(
      join(folder, 'functions/jobs/index.ts'),
      `import { defineJobs } from '../../src/index.ts';
       import { flaky } from './flaky.ts';
       import { slow } from './slow.ts';
       export const registry = defineJobs([flaky, slow]);`,
    );
  });

  async function declare(name: string, work: string): Promise<void> {
    await writeFile(
      join(folder, `functions/jobs/${name}.ts`),
      `import { setTimeout as sleep } from 'node:timers/promises';
       import { defineJob } from '../../src/index.ts';
       export const ${name} = defineJob({ name: '${name}', async work({ signal }) { void sleep; void signal; ${work} } });`,
    );
  }

  let place: Place;
  let start: Running;
  async function begin(): Promise<void> {
    start = run([...cli, 'dev', ...place.flags, '--speed', '120'], { cwd: folder });
    await untilUp(place, start);
  }

  it('I3: retries a manual run; I4: no foreign origin; I6: names; I7: no control codes', async () => {
    place = await freePlace();
    await begin();
    await asked(place, '/jobs/flaky/runs', 'POST');
    const runs = await until(async () => {
      const { runs } = (await asked(place, '/runs?job=flaky')) as { runs: RunRecord[] };
      return runs.length === 3 && runs[0]?.final === true ? runs : undefined;
    }, start.ended);
    expect(runs.map(({ status, attempt }) => [status, attempt])).toEqual([
      ['failed', 3],
      ['failed', 2],
      ['failed', 1],
    ]);
    expect(new Set(runs.map(({ slot }) => slot)).size).toBe(1);
    expect(new Set(runs.map((one) => (one as { deliveryId?: string }).deliveryId)).size).toBe(1);

    const failed = await fetch(invocations(), { method: 'POST', body: JSON.stringify(manual('flaky')) });
    expect(await failed.json()).toMatchObject({ errorType: 'RunWentWrong' });
    await standFast();

    const line = await until(
      async () => /flaky .*failed.*attempt 3\/3.*/.exec(start.said())?.[0],
      start.ended,
    );
    expect(line).toContain('no \\u001b[31mred\\u0007 \\u009b \\u202ereversed');
    // eslint-disable-next-line no-control-regex -- they are what is looked for
    expect(start.said()).not.toMatch(/[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u202a-\u202e]/);
  });

  it.each(['SIGKILL', 'SIGINT'] as const)(
    'I3: a run cut off by %s is settled by the next start, and shown',
    async (signal) => {
      await asked(place, '/jobs/slow/runs', 'POST');
      const [slot] = await until(async () => slots('running'), start.ended);
      start.process.kill(signal);
      await start.ended;
      await begin();
      expect((await slots('lost'))?.[0]).toBe(slot);
      await until(
        // Others may have been cut off with it, the sweep for one.
        async () => /cut off when this was last ended:\n(?:\S.*\n)*?.*slow .*lost/.exec(start.said())?.[0],
        start.ended,
      );
    },
  );

  async function slots(status: string): Promise<readonly string[] | undefined> {
    const { runs } = (await asked(place, `/runs?job=slow&status=${status}`)) as { runs: RunRecord[] };
    return runs.length > 0 ? runs.map(({ slot }) => slot) : undefined;
  }

  function invocations(): string {
    return `http://127.0.0.1:${place.lambdaPort}/2015-03-31/functions/cronce-local-flaky/invocations`;
  }

  /** What the browser of this machine may be led to send. */
  async function standFast(): Promise<void> {
    const own = { host: `localhost:${place.port}` };
    expect(await sent(place.port, '/healthz', { ...own, cookie: 'prefs={"a":1}; =; a=b=c; "' })).toEqual([
      200,
      null,
    ]);
    expect(await sent(place.port, '/healthz', { ...own, origin: place.url })).toMatchObject([200, place.url]);
    for (const origin of [
      'http://evil.example',
      'null',
      'http://localhost:1',
      `https://localhost:${place.port}`,
    ])
      expect(await sent(place.port, '/healthz', { ...own, origin })).toEqual([403, null]);
    for (const host of [
      'evil.example',
      `localhost.evil.example:${place.port}`,
      '10.0.0.1',
      '127.0.0.1.evil.example',
    ])
      expect(await sent(place.port, '/healthz', { host })).toEqual([421, null]);
    const event = `/2015-03-31/functions/cronce-local-slow/invocations`;
    expect(await sent(place.lambdaPort, event, { origin: 'http://evil.example' }, 'POST')).toEqual([
      403,
      null,
    ]);
    expect(await sent(place.lambdaPort, event, { host: 'evil.example' }, 'POST')).toEqual([421, null]);
    expect(await sent(place.lambdaPort, event, { origin: 'http://evil.example' }, 'OPTIONS')).toEqual([
      403,
      null,
    ]);
    expect(await slots('running')).toBeUndefined();
  }
});

function manual(job: string) {
  return {
    cronce: { job, trigger: 'manual', slot: 'manual:by-hand', scheduledFor: new Date().toISOString() },
  };
}

/** The status, and the origin that may read the answer. */
async function sent(
  port: number,
  path: string,
  headers: Readonly<Record<string, string>>,
  method = 'GET',
): Promise<readonly [number | undefined, string | null]> {
  return new Promise((resolve, reject) => {
    request({ host: '127.0.0.1', port, path, method, headers }, (response) => {
      response.resume();
      const allowed = response.headers['access-control-allow-origin'] ?? null;
      resolve([response.statusCode, allowed]);
    })
      .on('error', reject)
      .end();
  });
}

async function asked({ url, folder: kept }: Place, path: string, method = 'GET'): Promise<unknown> {
  const token = await readFile(join(kept, 'token'), 'utf8');
  const answer = await fetch(url + path, { method, headers: { Authorization: `Bearer ${token}` } });
  return answer.json();
}

async function edit(path: string, from: string, to: string): Promise<void> {
  const file = join(folder, path);
  await writeFile(file, (await readFile(file, 'utf8')).replace(from, to));
}

function jsonIn(said: string): string {
  return said.slice(said.indexOf('{\n'), said.lastIndexOf('}') + 1);
}
