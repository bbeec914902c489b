"""Functions that an analyst's expressions may have, by the growth of their results' size.

A function in none of these lists is not allowed. `sqlfl.governance.measuring` computes the bounds.
"""

from __future__ import annotations

NUMBER = "number"
"""Results of a bounded size, in a time that grows as the arguments do."""
TOTAL = "total"
"""Aggregates of a bounded size."""
COMPARED = "compared"
"""Numbers, in a time that grows as the product of the arguments' sizes."""
CHOSEN = "chosen"
"""One of the arguments."""
KEPT = "kept"
"""Aggregates that give the value of a row, or those of several."""
GATHERED = "gathered"
"""Aggregates that give the values of all rows."""
OF_LIST = "of_list"
"""An aggregate that a literal names, of a list."""
PATTERN = "pattern"
"""Numbers, by a regular expression."""
SPLIT = "split"
"""Parts of a text, by a regular expression."""
TRANSFORMED = "transformed"
"""A function of each element of a list."""
FILTERED = "filtered"
"""Elements of a list for which a function holds."""
REDUCED = "reduced"
"""A function of the last result and an element."""
PADDED = "padded"
"""A text of a length that a literal gives."""
REPEATED = "repeated"
"""A value as often as a literal says."""
RANGED = "ranged"
"""A list of numbers between literals."""
BITS = "bits"
"""Bits, as many as a literal says."""
RESIZED = "resized"
"""Lists of a length that a literal gives."""
BINS = "bins"
"""Numbers, as many as a literal says."""
TOP = "top"
"""Values of rows, as many as a literal says."""
PRINTED = "printed"
"""A text by a literal, which has widths."""
SHORT = "short"
"""Texts that DuckDB itself bounds."""
PART = "part"
"""A part of a text or a list: a literal may say how long it is."""
SELECTED = "selected"
"""Elements of a list, each as often as another list says."""
ZIPPED = "zipped"
"""Structs of the elements of lists."""
JOINED = "joined"
"""Texts, with one between each two."""
REPLACED = "replaced"
"""A text in which each place of another gives way to a third."""
REPLACED_BY_PATTERN = "replaced_by_pattern"
"""A text in which each match of a regular expression is replaced by a third."""
EXTRACTED = "extracted"
"""Parts of a text that groups of a regular expression match."""
PATH = "path"
"""Parts of a JSON, by paths that are literals."""

_BY_RULE = {
    NUMBER: """
        != !~~ !~~* !__postfix % && * ** / // <-> < <= <=> <@ = > >= @ @> ^ ^@ ~~ ~~* ~~~ not
        abs acos acosh age ascii asin asinh atan atan2 atanh bit_count bit_length
        cardinality cbrt ceil ceiling century char_length character_length chr contains cos cosh
        cot date_add date_diff date_sub date_trunc datediff datesub datetrunc day dayname
        dayofmonth dayofweek dayofyear days_in_month decade degrees ends_with enum_code epoch
        epoch_ms epoch_ns epoch_us era even exp factorial fdiv floor fmod gamma gcd get_bit
        greatest_common_divisor hash hour ilike_escape instr isfinite isinf isnan isodow isoyear
        json_array_length json_exists json_type json_valid julian last_day lcm
        least_common_multiple len length length_grapheme lgamma like_escape ln log log10 log2
        make_date make_time make_timestamp make_timestamp_ms make_timestamp_ns make_timestamptz
        map_contains map_contains_entry map_contains_value md5 md5_number md5_number_lower
        md5_number_upper microsecond millennium millisecond minute mod month monthname
        nanosecond nextafter normalized_interval not_ilike_escape not_like_escape octet_length
        ord pi position pow power prefix quarter radians round round_even roundbankers second
        sha1 sha256 sign signbit sin sinh sqrt starts_with strlen strpos strptime
        struct_contains suffix tan tanh time_bucket timezone timezone_hour timezone_minute
        to_centuries to_days to_decades to_hours to_microseconds to_millennia to_milliseconds
        to_minutes to_months to_quarters to_seconds to_timestamp to_weeks to_years trunc
        try_strptime unicode uuid_extract_timestamp uuid_extract_version week weekday weekofyear
        year yearweek list_avg list_bool_and list_bool_or list_count list_product
        list_stddev_pop list_stddev_samp list_sum list_var_pop list_var_samp array_cross_product
        array_contains array_has array_has_all array_has_any array_indexof array_length
        array_position array_unique list_contains list_has list_has_all list_has_any
        list_indexof list_position list_unique array_cosine_distance array_cosine_similarity
        array_distance array_dot_product array_inner_product array_negative_dot_product
        array_negative_inner_product list_cosine_distance list_cosine_similarity list_distance
        list_dot_product list_inner_product list_negative_dot_product
        list_negative_inner_product hamming jaccard mismatches
        """,
    TOTAL: """
        approx_count_distinct avg bool_and bool_or corr count count_if count_star countif
        covar_pop covar_samp entropy favg fsum geomean geometric_mean kahan_sum kurtosis
        kurtosis_pop mad mean product regr_avgx regr_avgy regr_count regr_intercept regr_r2
        regr_slope regr_sxx regr_sxy regr_syy sem skewness stddev stddev_pop stddev_samp sum
        sum_no_overflow sumkahan var_pop var_samp variance wavg weighted_avg
        """,
    COMPARED: """
        bit_position damerau_levenshtein editdist3 jaro_similarity jaro_winkler_similarity
        levenshtein
        """,
    CHOSEN: """
        constant_or_null greatest if ifnull iif least switch try
        """,
    KEPT: """
        any_value arbitrary arg_max arg_max_null arg_max_nulls_last arg_min arg_min_null
        arg_min_nulls_last argmax argmin bit_and bit_or bit_xor first last max max_by median min
        min_by mode quantile quantile_cont quantile_disc approx_quantile
        """,
    GATHERED: """
        array_agg list string_agg group_concat listagg histogram histogram_exact
        """,
    OF_LIST: """
        list_aggregate list_aggr array_aggregate array_aggr
        """,
    PATTERN: """
        regexp_matches regexp_full_match
        """,
    SPLIT: """
        regexp_split_to_array string_split_regex str_split_regex
        """,
    TRANSFORMED: """
        list_transform list_apply array_transform array_apply apply
        """,
    FILTERED: """
        list_filter array_filter filter
        """,
    REDUCED: """
        list_reduce array_reduce reduce
        """,
    PADDED: """
        lpad rpad
        """,
    REPEATED: """
        repeat
        """,
    RANGED: """
        range generate_series
        """,
    BITS: """
        bitstring
        """,
    RESIZED: """
        list_resize array_resize
        """,
    BINS: """
        equi_width_bins
        """,
    TOP: """
        approx_top_k
        """,
    PRINTED: """
        printf format
        """,
    SHORT: """
        bar to_base format_bytes formatreadablesize formatreadabledecimalsize
        """,
    PART: """
        substring substr substring_grapheme left right left_grapheme right_grapheme list_slice
        array_slice
        """,
    SELECTED: """
        list_select array_select
        """,
    ZIPPED: """
        list_zip array_zip
        """,
    JOINED: """
        concat_ws array_to_string
        """,
    REPLACED: """
        replace
        """,
    REPLACED_BY_PATTERN: """
        regexp_replace
        """,
    EXTRACTED: """
        regexp_extract regexp_extract_all
        """,
    PATH: """
        json_extract json_extract_path json_extract_string json_extract_path_text json_value ->>
        """,
}
_TIMES = {
    1: """
        + - & | << >> xor ~
        concat || decode encode ltrim nullif overlay reverse rtrim trim from_base64 from_binary
        from_hex unbin unhex url_decode set_bit row struct_pack list_value list_pack array_value
        struct_extract struct_extract_at struct_insert struct_concat list_concat list_cat
        array_concat array_cat array_pop_back array_pop_front array_reverse list_reverse
        list_distinct array_distinct list_intersect array_intersect list_sort array_sort
        list_reverse_sort array_reverse_sort list_where array_where flatten list_extract
        list_element array_extract list_any_value list_first list_last list_max list_median
        list_min list_mode map_extract map_extract_value element_at
        """,
    2: """
        date_part datepart base64 to_base64 hex to_hex lower upper lcase
        ucase list_append list_prepend array_append array_prepend array_push_back
        array_push_front
        """,
    3: """
        strip_accents nfc_normalize url_encode map map_from_entries map_concat map_entries
        map_keys map_values
        """,
    4: """
        regexp_escape translate
        """,
    6: """
        list_grade_up array_grade_up grade_up
        """,
    8: """
        bin to_binary json json_array json_object to_json json_quote
        """,
    16: """
        strftime
        """,
    20: """
        string_split str_split split split_part string_to_array
        """,
    24: """
        json_keys
        """,
}
"""Functions by the maximum ratio of their results to all arguments together."""

GROWTH: dict[str, str | int] = {
    **{name: rule for rule, names in _BY_RULE.items() for name in names.split()},
    **{name: times for times, names in _TIMES.items() for name in names.split()},
    "is distinct from": NUMBER,
    "is not distinct from": NUMBER,
}
"""Rule of each allowed function, or the maximum ratio of its result to all of its arguments."""
COPIED = (
    "nullif", "split_part", "array_to_string", "array_pop_back", "wavg", "weighted_avg",
)  # fmt: skip
"""Macros of DuckDB in which an argument occurs twice."""
SHORT_TEXTS = ("md5", "sha1", "sha256", "dayname", "monthname", "chr", "json_type")
"""Functions that have a short text."""
OF_NUMBERS = ("+", "-", "&", "|", "<<", ">>", "xor", "~", "nullif")
"""Functions that have numbers of numbers, and other results of others."""
OF_TEXTS = (
    "base64", "bin", "decode", "encode", "from_base64", "from_binary", "from_hex", "hex", "lcase",
    "left_grapheme", "lower", "ltrim", "nfc_normalize", "overlay", "regexp_escape", "reverse",
    "right_grapheme", "rtrim", "split", "split_part", "str_split", "strftime", "string_split",
    "string_to_array", "strip_accents", "substring_grapheme", "to_base64", "to_binary", "to_hex",
    "translate", "trim", "ucase", "unbin", "unhex", "upper", "url_decode", "url_encode",
)  # fmt: skip
"""Functions that have a text of any arguments."""
SAME_LISTS = (
    "list_concat", "list_cat", "array_concat", "array_cat", "array_pop_back", "array_pop_front",
    "array_reverse", "list_reverse", "list_distinct", "array_distinct", "list_intersect",
    "array_intersect", "list_sort", "array_sort", "list_reverse_sort", "array_reverse_sort", "+",
)  # fmt: skip
"""Functions that have a list of the same type as their lists."""
OF_ONE_LIST = (
    "list_any_value", "list_first", "list_last", "list_max", "list_median", "list_min", "list_mode",
)  # fmt: skip
"""Functions that have an element of a list."""
