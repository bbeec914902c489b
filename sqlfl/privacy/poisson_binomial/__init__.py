"""The Poisson binomial mechanism (Chen, Özgür and Kairouz, 2022): draws, what sums of them tell,
what they cost, and how many bins and which θ a budget allows.

A number x in [−C, C] is released as q ~ Binomial(b, ½ + θ x/C), and of all slots' q only the sum.
"""
