/** The one structured log line of an outcome: everything but what the job was given and what it answered. */
import type { Logger, Outcome } from '../run.ts';
import type { Observer } from './observer.ts';

/** Those that somebody should look at. */
const wrong: ReadonlySet<string> = new Set<Outcome>(['failed', 'timed_out', 'lost', 'missed']);

export function logLine(logger: Logger): Observer {
  return {
    name: 'log',
    recorded(run) {
      const { params, output, error, ...fields } = run;
      const line = {
        run: error
          ? { ...fields, error: { name: error.name, message: error.message, code: error.code } }
          : fields,
      };
      const what = `${run.job} ${run.status}${run.skipReason ? ` (${run.skipReason})` : ''}`;
      if (wrong.has(run.status)) logger.error(what, line);
      else logger.info(what, line);
    },
  };
}
