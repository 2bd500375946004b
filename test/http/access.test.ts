/** G7: what asking without a token costs, and what becomes of those who try one. */
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import type { HttpOptions } from '../../src/http/app.ts';
import { Health } from '../../src/http/health.ts';
import { Refusals } from '../../src/http/refusals.ts';
import { freshDatabase, type TestDatabase } from '../support/database.ts';
import { client, openAt, tokens } from '../support/http.ts';
import { serve } from '../support/node-server.ts';

let db: TestDatabase;
let http: ReturnType<typeof client>;
beforeAll(async () => {
  db = await freshDatabase();
  http = client(db.url);
});
afterAll(() => db.drop());
afterEach(() => {
  http.logged.length = 0;
});

async function served(changes: Partial<HttpOptions>) {
  const server = await serve(http.appWith(changes));
  onTestFinished(() => server.close());
  return server.origin;
}

describe('/healthz', () => {
  test('400 who ask at once cost one session, and again later one', async () => {
    let opened = 0;
    const openSession = async () => {
      opened += 1;
      return openAt(db.url)();
    };
    const origin = await served({ openSession });
    const statuses = async () =>
      Promise.all(Array.from({ length: 400 }, async () => (await fetch(`${origin}/healthz`)).status));
    const began = performance.now();
    expect(new Set(await statuses())).toEqual(new Set([200]));
    // However slow this machine is: one at once, and one more for each second that has passed.
    expect(opened).toBeLessThanOrEqual(1 + Math.floor((performance.now() - began) / 1_000));
    await delay(1_050);
    expect(new Set(await statuses())).toEqual(new Set([200]));
    expect(opened).toBeGreaterThan(1);
    expect(opened).toBeLessThanOrEqual(1 + Math.floor((performance.now() - began) / 1_000));
  });

  test('while the database is down too, and it is well again a second after', async () => {
    let opened = 0;
    let url = 'postgres://me@127.0.0.1:1/x';
    const openSession = async () => {
      opened += 1;
      return openAt(url)();
    };
    const origin = await served({ openSession });
    const began = performance.now();
    const all = await Promise.all(
      Array.from({ length: 50 }, async () => (await fetch(`${origin}/healthz`)).status),
    );
    expect(new Set(all)).toEqual(new Set([503]));
    expect(opened).toBeLessThanOrEqual(1 + Math.floor((performance.now() - began) / 1_000));
    url = db.url;
    await delay(1_050);
    expect((await fetch(`${origin}/healthz`)).status).toBe(200);
  });

  test('one look at a time, even one that takes longer than its answer is kept', async () => {
    let looks = 0;
    let finish = () => {};
    const health = new Health(async () => {
      looks += 1;
      return new Promise<void>((resolve) => (finish = resolve));
    }, 10);
    const first = health.check();
    await delay(30);
    const second = health.check();
    expect(looks).toBe(1);
    finish();
    await Promise.all([first, second]);
    void health.check();
    expect(looks).toBe(2);
    finish();
  });
});

describe('a refused token', () => {
  const wrong = { authorization: `Bearer ${tokens.wrong}` };
  const right = { authorization: `Bearer ${tokens.run}` };
  const bySource = {
    sourceOf: (c: { req: { header(name: string): string | undefined } }) => c.req.header('x-source') ?? null,
  };

  test('is logged with route and source, without itself, and no other request is', async () => {
    const app = http.appWith(bySource);
    const paths = [`/runs/${tokens.wrong}`, `/jobs?x=${tokens.wrong}`, `/${tokens.wrong}`];
    for (const path of paths) await app.request(path, { headers: { ...wrong, 'x-source': '203.0.113.9' } });
    await app.request('/jobs', {
      headers: { authorization: `Basic ${Buffer.from(`me:${tokens.wrong}`).toString('base64')}` },
    });
    await app.request('/jobs');
    await app.request('/jobs', { headers: right });
    expect(http.logged.map(({ level }) => level)).toEqual(['warn', 'warn', 'warn', 'warn']);
    const text = http.logged.map((line) => line.text);
    expect(text[0]).toMatch(/a token was refused.*203\.0\.113\.9.*GET.*\/runs\/:id/s);
    expect(text[1]).toContain("route: '/jobs'");
    expect(text[2]).toContain("route: 'none'");
    const forms = [
      tokens.wrong,
      Buffer.from(`me:${tokens.wrong}`).toString('base64'),
      tokens.wrong.slice(0, 6),
    ];
    expect(forms.filter((form) => text.join().includes(form))).toEqual([]);
  });

  test('is slowed down, longer each time, up to a bound; and forgotten by another address', async () => {
    const refusals = new Refusals({ firstMs: 40, longestMs: 160 });
    const took = async (source: string) => {
      const since = performance.now();
      await refusals.slowDown(source);
      return performance.now() - since;
    };
    const times: number[] = [];
    for (let n = 0; n < 5; n++) times.push(await took('a'));
    // Timers may fire a millisecond early, and any amount late.
    const least = [40, 80, 160, 160, 160];
    expect(times.map((ms, n) => ms >= (least[n] ?? 0) - 2)).toEqual([true, true, true, true, true]);
    // All at once: those of another address begin anew, though the first has got far.
    const order: string[] = [];
    await Promise.all([took('a').then(() => order.push('a')), took('b').then(() => order.push('b'))]);
    expect(order).toEqual(['b', 'a']);
  });

  test('holds up no valid one, of the same address either', async () => {
    const app = http.appWith({ ...bySource, refusals: new Refusals({ firstMs: 60_000, longestMs: 60_000 }) });
    let answered = 0;
    const attack = async () => {
      await app.request('/jobs', { headers: { ...wrong, 'x-source': 'a' } });
      answered += 1;
    };
    for (let n = 0; n < 50; n++) void attack();
    expect((await app.request('/jobs', { headers: { ...right, 'x-source': 'a' } })).status).toBe(200);
    expect((await app.request('/jobs', { headers: { 'x-source': 'a' } })).status).toBe(401); // tried none
    expect(answered).toBe(0);
  });

  test('of ever new addresses costs no memory', async () => {
    const refusals = new Refusals({ firstMs: 0 });
    await Promise.all(Array.from({ length: 3_000 }, async (_, n) => refusals.slowDown(String(n))));
    expect(refusals.size).toBe(1_000);
  });
});
