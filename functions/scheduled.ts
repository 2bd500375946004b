import { scheduledHandler } from '../src/lambda/index.ts';
import { registry } from './jobs/index.ts';

export const handler = scheduledHandler({ registry });
