import { test } from 'vitest';
import { freshDatabase } from './support/database.ts';
test('x', async () => { for (let i=0;i<6;i++){ let t=performance.now(); const db = await freshDatabase(); const a=performance.now()-t; t=performance.now(); await db.drop(); console.log(a|0, performance.now()-t|0);} });
