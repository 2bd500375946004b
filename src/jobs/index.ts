import { defineJobs } from '../job.ts';
import { expireSessions } from './expire-sessions.ts';
import { rollUpStatistics } from './roll-up-statistics.ts';
import { sendNotifications } from './send-notifications.ts';

/** The jobs of this deployment: functions, schedules and page follow from it. */
export const registry = defineJobs([expireSessions, rollUpStatistics, sendNotifications]);
