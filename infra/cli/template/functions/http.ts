import { httpHandler } from 'cronce/lambda';
import { registry } from './jobs/index.ts';

export const handler = httpHandler({ registry });
