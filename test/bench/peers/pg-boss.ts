/**
 * pg-boss 12: a queue a job, a resident worker, woken by LISTEN/NOTIFY as its documentation advises for low latency (its
 * default is to ask every 2 s, which it still does here) and taking 20 at a time: one at a time, what comes while it works
 * would wait for its next question. A slot is sent under an id reckoned from it, so that it is in the table once, also when it
 * has been worked off, until that record is deleted after 7 days. (Its `singletonSeconds` throttles by the clock of the
 * sending, and not by the slot.) A delivery counts as over when the handler is: that it is done is written afterwards.
 */
import { createHash } from 'node:crypto';
import { PgBoss } from 'pg-boss';
import { Waiting, type Peer } from './peer.ts';

interface Asked {
  readonly slot: string;
}

function idOf(job: string, slot: string): string {
  const hex = createHash('sha256').update(`${job} ${slot}`).digest('hex');
  return [
    hex.slice(0, 8),
    hex.slice(8, 12),
    `8${hex.slice(13, 16)}`,
    `8${hex.slice(17, 20)}`,
    hex.slice(20, 32),
  ].join('-');
}

export const pgBoss: Peer = {
  name: 'pg-boss',
  on: 'PostgreSQL',
  resident: true,
  takenOverBy: 'itself',
  setUp:
    'a queue a job, `work()` with `notify` and `batchSize: 20`, a job’s `id` reckoned from its slot; `expireInSeconds` 15 min by default, `heartbeatSeconds` none; keeps its connections',
  async start({ postgres }, jobs, work) {
    const boss = new PgBoss({ connectionString: postgres, useListenNotify: true });
    boss.on('error', () => undefined);
    await boss.start();
    const waiting = new Waiting();
    for (const job of jobs) {
      await boss.createQueue(job, { notify: true });
      await boss.work<Asked>(job, { batchSize: 20, notifyPollingIntervalSeconds: 2 }, async (all) => {
        for (const { data } of all) {
          await work(job, data.slot);
          waiting.over(job, data.slot);
        }
      });
    }
    return {
      async deliver(job, slot) {
        const over = waiting.until(job, slot);
        const id = await boss.send(job, { slot }, { id: idOf(job, slot) });
        if (id === null) return false;
        await over;
        return true;
      },
      stop: async () => boss.stop({ graceful: false }),
    };
  },
};
