import { defineJobs } from 'cronce';
import { countConnections } from './count-connections.ts';

/** The jobs of this deployment: functions, schedules, rights and page follow from it. */
export const registry = defineJobs([countConnections]);
