import { defineJob } from '../../src/index.ts';

const timeZone = 'Europe/Berlin';

/**
 * Yesterday by the slot's date, never by the clock: a run that comes hours late, or once more by hand, still writes
 * the day that it was due for.
 */
export const rollUpStatistics = defineJob({
  name: 'roll-up-statistics',
  description: 'Sums up the page views of the day before the slot.',
  schedule: { at: 'cron(15 0 * * ? *)', timeZone },
  lockDelayMs: 0, // all it writes goes through tx
  async work({ tx, scheduledFor }) {
    const { rows } = await tx.query(
      `WITH the_day AS (SELECT ($1::timestamptz AT TIME ZONE $2)::date - 1 AS day),
            counted AS (
              SELECT day, count(v.at) AS views, count(DISTINCT v.visitor) AS visitors
              FROM the_day LEFT JOIN app.page_view v
                ON v.at >= day::timestamp AT TIME ZONE $2 AND v.at < (day + 1)::timestamp AT TIME ZONE $2
              GROUP BY day)
       INSERT INTO app.daily_statistics AS s (day, views, visitors) SELECT day, views, visitors FROM counted
       ON CONFLICT (day) DO UPDATE SET views = excluded.views, visitors = excluded.visitors
       RETURNING day::text, views::integer, visitors::integer`,
      [scheduledFor, timeZone],
    );
    return rows[0];
  },
});
