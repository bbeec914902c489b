"""Statements over the schema of a retailer (as in TPC-DS), split over five parties.

Each is written as an analyst would write it, is trained, and predicts as a central fit does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import duckdb
import numpy as np
import pytest

import sqlfl
from tests import oracle
from tests.federations import assert_close, probabilities
from tests.open_databases import in_memory
from tests.strategies import LINEAR, LOGISTIC, predict_sql, train_sql

TABLES = {
    "sales": {
        "store": """SELECT i AS s_store_sk, 'Store ' || i AS s_store_name, 40 + (i * 37) % 60
            AS s_number_employees, if(i % 2 = 0, 'TN', 'GA') AS s_state FROM range(5) r(i)""",
        "store_sales": """SELECT (i * 7) % 120 AS ss_sold_date_sk, (i * 11) % 30 AS ss_item_sk,
            if(i % 19 = 0, NULL, (i * 13 + i // 30) % 60) AS ss_customer_sk, i % 5 AS ss_store_sk,
            if(i % 3 = 0, (i * 5) % 9, NULL) AS ss_promo_sk, i // 2 AS ss_ticket_number,
            1 + (i * 17) % 9 AS ss_quantity, (((i * 29) % 500) / 10)::DECIMAL(7,2)
            AS ss_sales_price, round(sin(i) * 40 + (i * 17) % 9 * 3, 2) AS ss_net_profit
            FROM range(400) r(i)""",
    },
    "crm": {
        "customer": """SELECT i AS c_customer_sk, if(i % 7 = 0, NULL, (i * 3) % 12)
            AS c_current_hdemo_sk, 1930 + (i * 31) % 70 AS c_birth_year,
            if((i * 5) % 8 < 3, 'Y', 'N') AS c_preferred_cust_flag,
            DATE '2000-01-01' + ((i * 9) % 90)::INTEGER AS c_first_sales_date
            FROM range(70) r(i)""",
        "household_demographics": """SELECT i AS hd_demo_sk, if(i % 3 = 0, '>10000', '0-500')
            AS hd_buy_potential, i % 5 AS hd_dep_count, i % 4 - 1 AS hd_vehicle_count
            FROM range(12) r(i)""",
    },
    "goods": {
        "item": """SELECT i AS i_item_sk, ['Books', 'Music', 'Shoes', 'Home'][1 + i % 4]
            AS i_category, if(i % 6 = 0, NULL, 'brand ' || i % 5) AS i_brand,
            (5 + (i * 23) % 40)::DECIMAL(7,2) AS i_current_price, i % 5 AS i_manager_id
            FROM range(30) r(i)""",
    },
    "office": {
        "date_dim": """SELECT i AS d_date_sk, DATE '2000-01-01' + i::INTEGER AS d_date,
            month(d_date) AS d_moy, dayname(d_date) AS d_day_name,
            if(i % 30 = 0, 'Y', 'N') AS d_holiday
            FROM range(120) r(i)""",
        "promotion": """SELECT i AS p_promo_sk, if(i % 2 = 0, 'Y', 'N') AS p_channel_email,
            if(i % 3 = 0, 'Y', 'N') AS p_channel_tv, 100.0 * (i + 1) AS p_cost
            FROM range(8) r(i)""",
    },
    "service": {
        "store_returns": """SELECT ss_item_sk AS sr_item_sk, ss_customer_sk AS sr_customer_sk,
            ss_ticket_number AS sr_ticket_number, ss_sold_date_sk + (i * 3) % 20
            AS sr_returned_date_sk, 1 + i % 3 AS sr_return_quantity,
            ['broken', 'late', NULL][1 + i % 3] AS sr_reason
            FROM (SELECT *, row_number() OVER (ORDER BY ss_ticket_number, ss_item_sk) AS i
            FROM sales.store_sales) WHERE i % 4 = 1""",
    },
}  # fmt: skip
DATABASES = {"sales": 1, "crm": 1, "goods": 1, "office": 1, "service": 2}
STATEMENTS: dict[str, tuple[str, str, str]] = {
    "facts and dimensions": (LINEAR, "profit", """
        SELECT i_category, i_current_price, d_moy, 2000 - c_birth_year AS age, ss_quantity,
          ss_net_profit AS profit
        FROM sales.store_sales, goods.item, office.date_dim, crm.customer
        WHERE ss_item_sk = i_item_sk AND ss_sold_date_sk = d_date_sk
          AND ss_customer_sk = c_customer_sk AND d_moy BETWEEN 1 AND 3
          AND i_category IN ('Books', 'Music', 'Shoes')"""),
    "a snowflake": (LINEAR, "profit", """
        SELECT hd.hd_buy_potential, hd.hd_vehicle_count / greatest(hd.hd_dep_count, 1) AS per_head,
          s.s_number_employees, ss.ss_net_profit AS profit, i.i_brand
        FROM sales.store_sales ss
        JOIN sales.store s ON ss.ss_store_sk = s.s_store_sk AND s.s_state = 'TN'
        JOIN crm.customer c ON c.c_customer_sk = ss.ss_customer_sk
        LEFT JOIN crm.household_demographics hd ON hd.hd_demo_sk = c.c_current_hdemo_sk
        JOIN goods.item i ON i.i_item_sk = ss.ss_item_sk"""),
    "promotions that may be missing": (LINEAR, "profit", """
        SELECT coalesce(p.p_channel_email, 'none') AS email, coalesce(p.p_cost, 0) AS cost,
          p.p_promo_sk IS NOT NULL AS promoted, i.i_current_price, ss.ss_net_profit AS profit
        FROM sales.store_sales AS ss
        LEFT JOIN office.promotion AS p ON p.p_promo_sk = ss.ss_promo_sk
        INNER JOIN goods.item AS i ON i.i_item_sk = ss.ss_item_sk"""),
    "whether a sale is returned": (LOGISTIC, "returned", """
        SELECT ss.ss_quantity, ss.ss_sales_price, i.i_category,
          r.sr_ticket_number IS NOT NULL AS returned
        FROM sales.store_sales ss
        LEFT JOIN service.store_returns r
          ON r.sr_ticket_number = ss.ss_ticket_number AND r.sr_item_sk = ss.ss_item_sk
        JOIN goods.item i ON i.i_item_sk = ss.ss_item_sk"""),
    "customers who returned something": (LINEAR, "ss_net_profit", """
        SELECT ss.ss_quantity, c.c_birth_year, ss.ss_net_profit
        FROM sales.store_sales ss JOIN crm.customer c ON c.c_customer_sk = ss.ss_customer_sk
        WHERE EXISTS (SELECT * FROM service.store_returns sr
          WHERE sr.sr_customer_sk = c.c_customer_sk AND sr.sr_return_quantity > 1)"""),
    "customers who returned nothing late": (LINEAR, "ss_net_profit", """
        SELECT ss.ss_quantity, c.c_preferred_cust_flag, ss.ss_net_profit
        FROM sales.store_sales ss JOIN crm.customer c ON c.c_customer_sk = ss.ss_customer_sk
        ANTI JOIN service.store_returns sr
          ON sr.sr_customer_sk = c.c_customer_sk AND sr.sr_reason = 'late'"""),
    "totals of customers": (LOGISTIC, "preferred", """
        WITH totals AS (
          SELECT ss_customer_sk, sum(ss_net_profit) AS profit, count(*) AS sales,
            count(DISTINCT ss_item_sk) AS items
          FROM sales.store_sales WHERE ss_quantity > 1 GROUP BY ALL
        )
        SELECT t.* EXCLUDE (ss_customer_sk), c.c_birth_year,
          c.c_preferred_cust_flag = 'Y' AS preferred
        FROM crm.customer c JOIN totals t ON t.ss_customer_sk = c.c_customer_sk"""),
    "sales as features of a customer": (LOGISTIC, "preferred", """
        SELECT c.c_birth_year, c.c_preferred_cust_flag = 'Y' AS preferred,
          (SELECT count(*) FROM sales.store_sales s WHERE s.ss_customer_sk = c.c_customer_sk)
            AS sales,
          (SELECT coalesce(sum(s.ss_net_profit), 0) FROM sales.store_sales s
            WHERE s.ss_customer_sk = c.c_customer_sk AND s.ss_promo_sk IS NOT NULL) AS promoted
        FROM crm.customer c"""),
    "who bought something on promotion": (LOGISTIC, "preferred", """
        SELECT c.c_birth_year, c.c_preferred_cust_flag = 'Y' AS preferred,
          EXISTS (SELECT * FROM sales.store_sales s WHERE s.ss_customer_sk = c.c_customer_sk
            AND s.ss_promo_sk > 3) AS promoted
        FROM crm.customer c
        WHERE c.c_birth_year > 1980 OR EXISTS (
          SELECT 1 FROM sales.store_sales s
          WHERE s.ss_customer_sk = c.c_customer_sk AND s.ss_quantity > 7)"""),
    "returns within two weeks": (LINEAR, "quantity", """
        SELECT ss.ss_sales_price, ss.ss_quantity, i.i_category, r.sr_return_quantity AS quantity
        FROM sales.store_sales ss JOIN goods.item i ON i.i_item_sk = ss.ss_item_sk
        JOIN service.store_returns r ON r.sr_customer_sk = ss.ss_customer_sk
          AND r.sr_item_sk = ss.ss_item_sk
          AND r.sr_returned_date_sk BETWEEN ss.ss_sold_date_sk AND ss.ss_sold_date_sk + 14"""),
    "first sales around a holiday": (LOGISTIC, "preferred", """
        SELECT c.c_birth_year, d.d_moy, count_of.n, c.c_preferred_cust_flag = 'Y' AS preferred
        FROM crm.customer c
        JOIN office.date_dim d ON abs(date_diff('day', c.c_first_sales_date, d.d_date)) <= 10
          AND d.d_holiday = 'Y'
        LEFT JOIN (SELECT ss_customer_sk AS sk, count(*) AS n FROM sales.store_sales GROUP BY 1)
          AS count_of ON count_of.sk = c.c_customer_sk"""),
    "alternatives over several parties": (LINEAR, "ss_quantity", """
        SELECT ss_sales_price, c_birth_year, i_current_price, ss_quantity
        FROM sales.store_sales
        JOIN crm.customer ON ss_customer_sk = c_customer_sk
        JOIN goods.item ON ss_item_sk = i_item_sk
        WHERE (c_preferred_cust_flag = 'Y' AND ss_sales_price BETWEEN 10 AND 40)
           OR (c_birth_year > 1970 AND i_category = 'Books')
           OR (i_category = 'Shoes' AND NOT c_birth_year < 1950)"""),
    "a column that another party's decides": (LINEAR, "profit", """
        SELECT CASE WHEN d.d_day_name IN ('Saturday', 'Sunday') THEN ss.ss_quantity ELSE 0 END
            AS at_weekend,
          ss.ss_quantity * (d.d_holiday = 'Y')::INTEGER AS on_holiday,
          d.d_moy, ss.ss_quantity, ss.ss_net_profit AS profit
        FROM sales.store_sales ss JOIN office.date_dim d ON d.d_date_sk = ss.ss_sold_date_sk"""),
    "prices above those of the category": (LINEAR, "ss_quantity", """
        SELECT ss.ss_sales_price, ss.ss_quantity, d.d_moy, i.i_brand
        FROM sales.store_sales ss JOIN office.date_dim d ON d.d_date_sk = ss.ss_sold_date_sk
        JOIN goods.item i ON i.i_item_sk = ss.ss_item_sk
        WHERE i.i_current_price > 1.1 * (
          SELECT avg(j.i_current_price) FROM goods.item j WHERE j.i_category = i.i_category)"""),
    "the last sale of each customer": (LINEAR, "ss_net_profit", """
        WITH last_sale AS (
          SELECT * FROM sales.store_sales WHERE ss_customer_sk IS NOT NULL
          QUALIFY row_number() OVER (PARTITION BY ss_customer_sk
            ORDER BY ss_sold_date_sk DESC, ss_ticket_number, ss_item_sk) = 1
        )
        SELECT l.ss_quantity, l.ss_net_profit, c.c_birth_year, hd.hd_dep_count
        FROM last_sale l JOIN crm.customer c ON c.c_customer_sk = l.ss_customer_sk
        LEFT JOIN crm.household_demographics hd ON hd.hd_demo_sk = c.c_current_hdemo_sk"""),
    "a list of promotions": (LINEAR, "ss_net_profit", """
        SELECT ss.ss_quantity, ss.ss_net_profit, c.c_birth_year
        FROM sales.store_sales ss JOIN crm.customer c ON c.c_customer_sk = ss.ss_customer_sk
        WHERE ss.ss_promo_sk IN (
          SELECT p_promo_sk FROM office.promotion
          WHERE p_channel_tv = 'Y' OR p_channel_email = 'Y')"""),
    "bands of prices": (LINEAR, "ss_net_profit", """
        SELECT b.name AS band, ss.ss_quantity, ss.ss_net_profit, d.d_moy
        FROM sales.store_sales ss JOIN goods.item i ON i.i_item_sk = ss.ss_item_sk
        JOIN (VALUES ('low', 0, 15), ('middle', 15, 30), ('high', 30, 99)) AS b(name, lo, hi)
          ON i.i_current_price >= b.lo AND i.i_current_price < b.hi
        JOIN office.date_dim d ON d.d_date_sk = ss.ss_sold_date_sk"""),
    "sales with and without a promotion": (LINEAR, "profit", """
        SELECT ss_quantity AS quantity, ss_net_profit AS profit, p_cost AS cost
        FROM sales.store_sales JOIN office.promotion ON p_promo_sk = ss_promo_sk
        UNION ALL BY NAME
        SELECT ss_quantity AS quantity, ss_net_profit AS profit
        FROM sales.store_sales WHERE ss_promo_sk IS NULL"""),
    "two items of one customer": (LINEAR, "profit", """
        SELECT i.i_category AS one, j.i_category AS other, a.ss_quantity, a.ss_net_profit AS profit
        FROM sales.store_sales a
        JOIN sales.store_sales b
          ON a.ss_customer_sk = b.ss_customer_sk AND a.ss_item_sk < b.ss_item_sk
        JOIN goods.item i ON i.i_item_sk = a.ss_item_sk
        JOIN goods.item j ON j.i_item_sk = b.ss_item_sk"""),
    "customers without sales and sales without customers": (LINEAR, "profit", """
        SELECT c.c_birth_year, c.c_preferred_cust_flag, coalesce(t.profit, 0) AS profit, t.sales
        FROM crm.customer c
        FULL JOIN (SELECT ss_customer_sk AS sk, sum(ss_net_profit) AS profit, count(*) AS sales
          FROM sales.store_sales GROUP BY ss_customer_sk) t ON t.sk = c.c_customer_sk"""),
    "names shared by USING": (LINEAR, "profit", """
        WITH s AS (SELECT ss_item_sk AS item, ss_sold_date_sk AS day, ss_net_profit AS profit,
            ss_quantity AS quantity FROM sales.store_sales),
          r AS (SELECT sr_item_sk AS item, sr_returned_date_sk AS day, sr_return_quantity AS back
            FROM service.store_returns),
          both_of AS (SELECT * FROM s LEFT JOIN r USING (item, day))
        SELECT quantity, profit, coalesce(back, 0) AS back, i_current_price, i_category
        FROM both_of JOIN goods.item ON i_item_sk = item"""),
    "a pivot of a customer's categories of sales": (LOGISTIC, "preferred", """
        SELECT p.* EXCLUDE (sk), c.c_preferred_cust_flag = 'Y' AS preferred, c.c_birth_year
        FROM (PIVOT (SELECT ss_customer_sk AS sk, ss_store_sk, ss_quantity FROM sales.store_sales)
          ON ss_store_sk IN (0, 1, 2) USING sum(ss_quantity) GROUP BY sk) AS p
        RIGHT JOIN crm.customer c ON c.c_customer_sk = p.sk"""),
}  # fmt: skip

PARTS = {"sales": 2, "crm": 2, "goods": 1, "office": 1, "service": 3}
OVER_PARTS: dict[str, tuple[str, str, str]] = {
    "three channels of different columns": (LINEAR, "profit", """
        SELECT 'store' AS channel, i.i_category AS category, s.ss_quantity AS quantity,
          s.ss_net_profit AS profit
        FROM sales.store_sales s JOIN goods.item i ON i.i_item_sk = s.ss_item_sk
        WHERE s.ss_promo_sk IS NULL
        UNION ALL BY NAME
        SELECT 'promotion' AS channel, p.p_cost AS cost, s.ss_quantity AS quantity,
          s.ss_net_profit AS profit
        FROM sales.store_sales s JOIN office.promotion p ON p.p_promo_sk = s.ss_promo_sk
        UNION ALL BY NAME
        SELECT 'return' AS channel, -r.sr_return_quantity AS quantity, 0 AS profit,
          r.sr_reason AS reason FROM service.store_returns r"""),
    "what moved in and out": (LINEAR, "amount", """
        WITH moves AS (
          SELECT 'sale' AS kind, ss_item_sk AS item, ss_sold_date_sk AS day, ss_quantity AS amount
          FROM sales.store_sales
          UNION ALL BY NAME
          SELECT sr_item_sk AS item, sr_returned_date_sk AS day, -sr_return_quantity AS amount,
            'return' AS kind FROM service.store_returns
        )
        SELECT m.* EXCLUDE (item, day), i.* EXCLUDE (i_item_sk, i_manager_id), d.d_moy
        FROM moves m JOIN goods.item i ON i.i_item_sk = m.item
        JOIN office.date_dim d ON d.d_date_sk = m.day
        WHERE m.kind = 'sale' OR d.d_moy > 2"""),
    "the holiday before a sale": (LINEAR, "profit", """
        WITH holidays AS (
          SELECT d_date_sk AS since, d_day_name AS name FROM office.date_dim WHERE d_holiday = 'Y'
        )
        SELECT ss.ss_quantity, h.name, ss.ss_net_profit AS profit
        FROM sales.store_sales ss ASOF JOIN holidays h ON ss.ss_sold_date_sk >= h.since
        WHERE ss.ss_sold_date_sk BETWEEN 0 AND 200"""),
    "buyers of several things without damage": (LOGISTIC, "preferred", """
        SELECT c.c_birth_year, hd.hd_buy_potential, c.c_preferred_cust_flag = 'Y' AS preferred
        FROM crm.customer c
        LEFT JOIN crm.household_demographics hd ON hd.hd_demo_sk = c.c_current_hdemo_sk
        SEMI JOIN sales.store_sales s ON s.ss_customer_sk = c.c_customer_sk AND s.ss_quantity >= 3
        WHERE NOT EXISTS (
          SELECT 1 FROM service.store_returns r WHERE r.sr_customer_sk = c.c_customer_sk
            AND r.sr_reason = 'broken' AND r.sr_return_quantity > 2)"""),
    "customers who are not among those of returns": (LINEAR, "profit", """
        SELECT ss_quantity, i_category, ss_net_profit AS profit
        FROM sales.store_sales JOIN goods.item ON i_item_sk = ss_item_sk
        WHERE ss_customer_sk NOT IN (
          SELECT sr_customer_sk FROM service.store_returns
          WHERE sr_customer_sk IS NOT NULL AND sr_return_quantity = 3)"""),
    "sold and brought back by item": (LINEAR, "price", """
        WITH sold AS (
          SELECT ss_item_sk AS item, sum(ss_quantity) AS quantity, avg(ss_sales_price) AS mean
          FROM sales.store_sales GROUP BY ss_item_sk
        ), back AS (
          SELECT sr_item_sk AS item, count(*) AS returns, count_if(sr_reason = 'late') AS late
          FROM service.store_returns GROUP BY ALL
        )
        SELECT i.i_category, sold.quantity, sold.mean, coalesce(back.returns, 0) AS returns,
          coalesce(back.late, 0) AS late, i.i_current_price::DOUBLE AS price
        FROM goods.item i LEFT JOIN sold ON sold.item = i.i_item_sk LEFT JOIN back USING (item)"""),
    "groups of a customer's sales": (LOGISTIC, "preferred", """
        SELECT c.c_birth_year, avg(s.ss_net_profit) AS mean, max(s.ss_quantity) AS most,
          count(*) AS sales, c.c_preferred_cust_flag = 'Y' AS preferred
        FROM crm.customer c JOIN sales.store_sales s ON s.ss_customer_sk = c.c_customer_sk
        WHERE s.ss_sales_price > 5
        GROUP BY c.c_customer_sk, c.c_birth_year, c.c_preferred_cust_flag
        HAVING count(*) > 2"""),
    "sums beside each customer": (LOGISTIC, "preferred", """
        SELECT c.c_birth_year, l.mean, l.n, c.c_preferred_cust_flag = 'Y' AS preferred
        FROM crm.customer c LEFT JOIN LATERAL (
          SELECT avg(s.ss_net_profit) AS mean, count(*) AS n FROM sales.store_sales s
          WHERE s.ss_customer_sk = c.c_customer_sk AND s.ss_quantity > 2) l ON true"""),
    "conditions on keys of three tables": (LINEAR, "profit", """
        SELECT d.d_day_name, ss.ss_quantity, r.sr_return_quantity, ss.ss_net_profit AS profit
        FROM office.date_dim d JOIN sales.store_sales ss ON ss.ss_sold_date_sk = d.d_date_sk
        LEFT JOIN service.store_returns r
          ON r.sr_ticket_number = ss.ss_ticket_number AND r.sr_item_sk = ss.ss_item_sk
        WHERE d.d_date_sk BETWEEN 10 AND 70 AND ss.ss_item_sk IN (1, 2, 3, 5, 8, 13, 21, 24)"""),
    "sales in the month of the first one": (LOGISTIC, "preferred", """
        SELECT ss.ss_quantity, d.d_moy, dayofweek(d.d_date) IN (0, 6) AS weekend, c.c_birth_year,
          c.c_preferred_cust_flag = 'Y' AS preferred
        FROM sales.store_sales ss JOIN office.date_dim d ON d.d_date_sk = ss.ss_sold_date_sk
        JOIN crm.customer c ON c.c_customer_sk = ss.ss_customer_sk
          AND d.d_date BETWEEN c.c_first_sales_date AND c.c_first_sales_date + INTERVAL 30 DAY"""),
    "pieces brought back around the day": (LINEAR, "profit", """
        SELECT ss.ss_quantity, ss.ss_net_profit AS profit,
          (SELECT coalesce(sum(r.sr_return_quantity), 0) FROM service.store_returns r
           WHERE r.sr_item_sk = ss.ss_item_sk
             AND abs(r.sr_returned_date_sk - ss.ss_sold_date_sk) <= 5) AS near
        FROM sales.store_sales ss"""),
    "ranks in the category": (LINEAR, "profit", """
        SELECT i.rank, i.share, i.i_category, ss.ss_quantity, ss.ss_net_profit AS profit
        FROM sales.store_sales ss JOIN (
          SELECT *, rank() OVER (PARTITION BY i_category ORDER BY i_current_price) AS rank,
            i_current_price / sum(i_current_price) OVER (PARTITION BY i_category) AS share
          FROM goods.item) i ON i.i_item_sk = ss.ss_item_sk"""),
    "words of brands": (LINEAR, "profit", """
        SELECT i.i_category, u.word, ss.ss_net_profit AS profit
        FROM sales.store_sales ss JOIN goods.item i ON i.i_item_sk = ss.ss_item_sk,
          unnest(string_split(i.i_brand, ' ')) AS u(word)"""),
    "classes of two parties": (LINEAR, "profit", """
        SELECT CASE WHEN i.i_category = 'Books' AND d.d_moy = 1 THEN 'books in January'
            WHEN i.i_category = 'Books' THEN 'books' ELSE 'others' END AS class,
          CASE WHEN i.i_current_price < 15 THEN 'cheap' WHEN i.i_current_price < 30 THEN 'middle'
            ELSE 'dear' END AS band, ss.ss_quantity, ss.ss_net_profit AS profit
        FROM sales.store_sales ss JOIN goods.item i ON i.i_item_sk = ss.ss_item_sk
        JOIN office.date_dim d ON d.d_date_sk = ss.ss_sold_date_sk
        WHERE d.d_date >= DATE '2000-01-15' AND d.d_date < DATE '2000-01-15' + INTERVAL 60 DAY"""),
    "whether this sale is brought back": (LOGISTIC, "returned", """
        SELECT ss.ss_quantity, ss.ss_sales_price, i.i_category, EXISTS (
            SELECT 1 FROM service.store_returns r WHERE r.sr_item_sk = ss.ss_item_sk
              AND r.sr_ticket_number = ss.ss_ticket_number) AS returned
        FROM sales.store_sales ss JOIN goods.item i ON i.i_item_sk = ss.ss_item_sk"""),
    "counts of some returns": (LOGISTIC, "preferred", """
        WITH f AS (
          SELECT sr_customer_sk AS k, count(*) FILTER (WHERE sr_reason = 'late') AS late,
            sum(sr_return_quantity) FILTER (sr_reason IS NULL) AS other,
            max(sr_returned_date_sk) - min(sr_returned_date_sk) AS span
          FROM service.store_returns GROUP BY k
        )
        SELECT c.c_birth_year, f.* EXCLUDE k, c.c_preferred_cust_flag = 'Y' AS preferred
        FROM crm.customer c LEFT JOIN f ON f.k = c.c_customer_sk"""),
    "the next sale within three weeks": (LINEAR, "profit", """
        SELECT b.ss_quantity AS next, c.c_birth_year, a.ss_net_profit AS profit
        FROM sales.store_sales a JOIN sales.store_sales b ON b.ss_customer_sk = a.ss_customer_sk
          AND b.ss_sold_date_sk > a.ss_sold_date_sk
          AND b.ss_sold_date_sk <= a.ss_sold_date_sk + 20
        JOIN crm.customer c ON c.c_customer_sk = a.ss_customer_sk"""),
    "returns of nobody known": (LINEAR, "profit", """
        SELECT ss.ss_quantity, r.sr_reason, ss.ss_net_profit AS profit
        FROM sales.store_sales ss JOIN service.store_returns r ON r.sr_item_sk = ss.ss_item_sk
          AND r.sr_customer_sk IS NOT DISTINCT FROM ss.ss_customer_sk"""),
    "prices and quantities one below the other": (LINEAR, "value", """
        WITH u AS (
          UNPIVOT (SELECT ss_item_sk AS item, ss_quantity::DOUBLE AS quantity,
            ss_sales_price::DOUBLE AS price FROM sales.store_sales)
          ON quantity, price INTO NAME measure VALUE value
        )
        SELECT u.measure, i.i_category, u.value
        FROM u JOIN goods.item i ON i.i_item_sk = u.item"""),
    "the dearest items": (LINEAR, "profit", """
        SELECT i.i_category, ss.ss_quantity, ss.ss_net_profit AS profit
        FROM ((SELECT * FROM goods.item) ORDER BY i_current_price DESC, i_item_sk LIMIT 9) i
        JOIN sales.store_sales ss ON ss.ss_item_sk = i.i_item_sk"""),
}  # fmt: skip
"""Statements over parties of several databases."""


@pytest.fixture(scope="module")
def central() -> Iterator[duckdb.DuckDBPyConnection]:
    """All tables in one database."""
    with in_memory() as con:
        for party, tables in TABLES.items():
            con.execute(f"ATTACH ':memory:' AS {party}")
            for name, query in tables.items():
                con.execute(f"CREATE TABLE {party}.{name} AS {query}")
        yield con
        con.execute("USE memory")
        for party in TABLES:
            con.execute(f"DETACH {party}")


@contextmanager
def dealt(
    central: duckdb.DuckDBPyConnection, numbers: dict[str, int]
) -> Iterator[sqlfl.Federation]:
    """The same tables at five parties, which have so many databases."""
    with ExitStack() as stack:
        fed = stack.enter_context(sqlfl.Federation(progress=False))
        for party, number in numbers.items():
            own = [stack.enter_context(in_memory()) for _ in range(number)]
            for name in TABLES[party]:
                rows = central.sql(f"FROM {party}.{name}").to_arrow_table()
                for place, con in enumerate(own):
                    con.register("given", rows.take(np.arange(place, rows.num_rows, number)))
                    con.execute(f"CREATE TABLE {name} AS FROM given")
                    con.unregister("given")
            fed.attach(party, own if number > 1 else own[0])
        yield fed


@pytest.fixture(scope="module")
def federation(central: duckdb.DuckDBPyConnection) -> Iterator[sqlfl.Federation]:
    with dealt(central, DATABASES) as fed:
        yield fed


@pytest.fixture(scope="module")
def parts(central: duckdb.DuckDBPyConnection) -> Iterator[sqlfl.Federation]:
    with dealt(central, PARTS) as fed:
        yield fed


@pytest.mark.parametrize(("kind", "target", "query"), STATEMENTS.values(), ids=STATEMENTS)
def test_predictions_are_those_of_a_central_fit(
    kind: str,
    target: str,
    query: str,
    federation: sqlfl.Federation,
    central: duckdb.DuckDBPyConnection,
) -> None:
    compare(kind, target, query, federation, central)


@pytest.mark.parametrize(("kind", "target", "query"), OVER_PARTS.values(), ids=OVER_PARTS)
def test_predictions_over_several_databases_are_those_of_a_central_fit(
    kind: str,
    target: str,
    query: str,
    parts: sqlfl.Federation,
    central: duckdb.DuckDBPyConnection,
) -> None:
    compare(kind, target, query, parts, central)


def compare(
    kind: str,
    target: str,
    query: str,
    federation: sqlfl.Federation,
    central: duckdb.DuckDBPyConnection,
) -> None:
    """Compare rows and predictions of a model with those of a central fit."""
    data = oracle.central(central, query, kind, target)
    assert len(data.y) > 15
    train = train_sql("m", kind, target, query, epochs=200, tolerance=1e-10)
    federation.sql(train.replace("TRAIN MODEL", "TRAIN OR REPLACE MODEL", 1))
    assert federation.model("m").metrics["rows"] == len(data.y)
    found = probabilities(federation.sql(predict_sql("m", query)).arrow(), kind)
    expected = data.predict(data.optimum(), oracle.materialised(central, query))
    assert found.shape == expected.shape
    assert_close(np.sort(found, axis=0), np.sort(expected, axis=0), 1e-4)
