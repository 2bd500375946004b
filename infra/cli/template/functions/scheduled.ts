import { scheduledHandler } from 'cronce/lambda';
import { registry } from './jobs/index.ts';

export const handler = scheduledHandler({ registry });
