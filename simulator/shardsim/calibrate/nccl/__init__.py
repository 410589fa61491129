"""What nccl-tests printed, as tables: text of every vintage and ``-J`` JSON, as people paste it.

``read.read_logs`` is the way in and ``table`` what comes out. A row is kept whole or not at all, and what is left out
is named. Nothing here fits anything.
"""
