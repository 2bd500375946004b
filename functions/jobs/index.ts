import { defineJobs } from '../../src/index.ts';
import { expireSessions } from './expire-sessions.ts';
import { rollUpStatistics } from './roll-up-statistics.ts';
import { sendNotifications } from './send-notifications.ts';

/** They need tables of their own, functions/jobs/migrations, which a database of yours gets only where you ask for it. */
export const examples = [expireSessions, rollUpStatistics, sendNotifications];

/** The jobs of this deployment: functions, schedules and page follow from it. */
export const registry = defineJobs([...examples]);
