/** What must hold under a lock whatever has been broken, asked of the database afterwards. */
import type { Field } from './field.ts';

export interface Findings {
  readonly violations: readonly string[];
  /** Effects that were vouched for in time and done too late: frozen between `check()` and the act. A known limit. */
  readonly tooLate: readonly string[];
}

interface Rule {
  readonly says: string;
  /** Answers a row `what` for each violation. $1 is the lock; $2 the runs with a log line, $3 those whose work began. */
  readonly sql: string;
}

const rules: readonly Rule[] = [
  {
    says: 'a slot has more than one success',
    sql: `SELECT slot AS what FROM cronce.run WHERE lock_name = $1 AND status = 'succeeded'
          GROUP BY job, slot HAVING count(*) > 1`,
  },
  {
    says: 'a run never ended',
    sql: `SELECT id || ' of ' || slot AS what FROM cronce.run WHERE lock_name = $1 AND status = 'running'`,
  },
  {
    says: 'a run has more than one outcome',
    sql: `SELECT run_id || ': ' || string_agg(was || ' to ' || became, ', ') AS what
          FROM faults.change c JOIN cronce.run r ON r.id = c.run_id WHERE r.lock_name = $1
          GROUP BY run_id HAVING count(*) > 1 OR bool_or(was <> 'running')`,
  },
  {
    says: 'the unprotected counter is not the number of successes',
    sql: `SELECT 'counter ' || c.n || ', successes ' || coalesce(s.n, 0) AS what
          FROM faults.counter c, (SELECT sum((output ->> 'counted')::int) AS n FROM cronce.run
                                  WHERE lock_name = $1 AND status = 'succeeded') s
          WHERE c.lock = $1 AND c.n <> coalesce(s.n, 0)`,
  },
  {
    says: 'what a run wrote and its outcome do not agree',
    sql: `SELECT r.id || ' ' || r.status || ', rows ' || count(w.*) || ', said ' || coalesce(r.output ->> 'rows', '-') AS what
          FROM cronce.run r LEFT JOIN faults.written w ON w.run_id = r.id WHERE r.lock_name = $1 GROUP BY r.id
          HAVING count(w.*) <> CASE WHEN r.status = 'succeeded' THEN (r.output ->> 'rows')::int ELSE 0 END`,
  },
  {
    says: 'a run was stamped as told, and told by nobody',
    sql: `SELECT id || ' ' || status AS what FROM cronce.run
          WHERE lock_name = $1 AND published_at IS NOT NULL AND NOT id::text = ANY ($2)`,
  },
  {
    says: 'a run that began is not on record',
    sql: `SELECT b.id AS what FROM unnest($3::text[]) b (id)
          WHERE NOT EXISTS (SELECT FROM cronce.run r WHERE r.id = b.id::uuid AND r.lock_name = $1)`,
  },
  {
    says: 'a fenced transaction committed after its run had ended',
    sql: `SELECT f.run_id || ' ' || c.became AS what FROM faults.fenced f JOIN faults.change c ON c.run_id = f.run_id
          WHERE f.lock = $1 AND pg_xact_commit_timestamp(f.xmin) > pg_xact_commit_timestamp(c.xmin)`,
  },
  {
    says: 'a fenced transaction committed after a successor had started',
    sql: `SELECT f.run_id || ' with fence ' || f.fence || ' after ' || r.fence AS what
          FROM faults.fenced f JOIN cronce.run r ON r.lock_name = f.lock AND r.fence > f.fence
          WHERE f.lock = $1 AND pg_xact_commit_timestamp(f.xmin) > r.claimed_at`,
  },
];

/** What is asked of it: where the rows are, and what the workers have said. */
export type Witnesses = Pick<Field, 'crew'> & { readonly db: Pick<Field['db'], 'query'> };

/** @param forgotten runs that a lossy failover forgot: nothing is asked of their records */
export async function audit(
  field: Witnesses,
  lock: string,
  forgotten: readonly string[] = [],
): Promise<Findings> {
  const violations: string[] = [];
  const { crew, db } = field;
  const logged = crew.logged.map(({ runId }) => runId);
  const begun = crew.begun.filter((event) => event.lock === lock && !forgotten.includes(event.runId));
  const known = [lock, logged, begun.map(({ runId }) => runId)];
  for (const { says, sql } of rules) {
    const found = await db.query(`WITH given AS (SELECT $2::text[], $3::text[]) ${sql}`, known);
    const others = found.length > 1 ? ` (and ${found.length - 1} more)` : '';
    if (found[0]) violations.push(`${says}: ${String(found[0]['what'])}${others}`);
  }
  violations.push(...(await toldOtherwise(field, lock)));
  violations.push(
    ...overlaps(field, lock)
      .filter(({ ms }) => ms > 0)
      .map(({ text }) => text),
  );
  const late = await lateEffects(field, lock);
  return { violations: [...violations, ...late.violations], tooLate: late.tooLate };
}

/** For how long a run's `check()` has passed beside the work of a later one, ms; where below 0, how long before it last did. */
export function overlaps({ crew }: Pick<Field, 'crew'>, lock: string): { ms: number; text: string }[] {
  const begun = crew.begun.filter((event) => event.lock === lock);
  const last = new Map(crew.vouched.filter(({ until }) => until > 0).map((one) => [one.runId, one]));
  return [...last.values()]
    .filter((vouched) => vouched.lock === lock)
    .flatMap(({ runId, fence, until }) => {
      const next = begun.filter((event) => BigInt(event.fence) > BigInt(fence)).map(({ at }) => at);
      const ms = until - Math.min(...next);
      return next.length === 0 ? [] : [{ ms, text: `two vouched for ${ms} ms: ${runId} and its successor` }];
    });
}

/** What a path answered must be what the database says. */
async function toldOtherwise({ crew, db }: Witnesses, lock: string): Promise<string[]> {
  const rows = await db.query('SELECT id, status FROM cronce.run WHERE lock_name = $1', [lock]);
  const stored = new Map(rows.map(({ id, status }) => [id, status]));
  return crew.told
    .filter(({ id, lockName, status }) => lockName === lock && stored.get(id) !== status)
    .map(({ id, status }) => `${id} was told as ${status} and is stored as ${String(stored.get(id))}`);
}

async function lateEffects({ crew, db }: Witnesses, lock: string): Promise<Findings> {
  const rows = (await db.query(
    `SELECT run_id AS "runId", fence::int AS fence, (extract(epoch FROM vouched_at) * 1000)::float8 AS "vouchedAt",
            (extract(epoch FROM at) * 1000)::float8 AS at
     FROM faults.effect WHERE lock = $1`,
    [lock],
  )) as unknown as readonly { runId: string; fence: number; vouchedAt: number; at: number }[];
  const begun = crew.begun.filter((event) => event.lock === lock);
  const late = rows.flatMap((effect) =>
    begun
      .filter(({ fence, at }) => Number(fence) > effect.fence && at < effect.at)
      .map((successor) => ({
        vouched: effect.vouchedAt >= successor.at,
        text: `an effect of ${effect.runId} came ${Math.round(effect.at - successor.at)} ms after its successor's start`,
      })),
  );
  return {
    violations: late.filter(({ vouched }) => vouched).map(({ text }) => text),
    tooLate: late.filter(({ vouched }) => !vouched).map(({ text }) => text),
  };
}
