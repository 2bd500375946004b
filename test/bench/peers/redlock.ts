/**
 * redlock 4.2 (the newest that npm calls latest) with ioredis on one Redis. As its README has it: one client for all that
 * the process does, a ttl of 1 s that is extended as long as work goes on, and `retryCount: 0` for who takes "not got" for
 * "locked". It advises three servers or more, which would ask all of them at once; one is what is measured.
 */
import { Redis } from 'ioredis';
import Redlock from 'redlock';
import type { Peer } from './peer.ts';

const ttlMs = 1_000;

export const redlock: Peer = {
  name: 'redlock',
  on: 'Redis',
  resident: false,
  takenOverBy: 'a delivery',
  setUp:
    'one Redis, `ttl` 1 s as in its README, extended every half of it while work goes on; `retryCount: 0`; keeps its connection',
  async start({ redisPort }, _jobs, work) {
    const client = new Redis({ port: redisPort, host: '127.0.0.1', lazyConnect: true });
    client.on('error', () => undefined);
    await client.connect();
    const locks = new Redlock([client], { retryCount: 0 });
    locks.on('clientError', () => undefined);
    return {
      async deliver(job, slot) {
        const lock = await locks.lock(`locks:${job}`, ttlMs).catch(orHeld);
        if (lock === null) return false;
        const extending = setInterval(() => void lock.extend(ttlMs).catch(() => undefined), ttlMs / 2);
        try {
          await work(job, slot);
        } finally {
          clearInterval(extending);
        }
        await lock.unlock();
        return true;
      },
      async stop() {
        client.disconnect();
      },
    };
  },
};

function orHeld(error: unknown): null {
  if (error instanceof Redlock.LockError) return null;
  throw error;
}
