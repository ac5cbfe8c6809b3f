"""``decideploy serve`` with wishes that the command line does not take: JSON of its options, and of them."""

import json
import sys

from decideploy.plan import Workload
from decideploy.serve import ServeOptions, serve

if __name__ == "__main__":
    options, wishes = map(json.loads, sys.argv[1:])
    serve(ServeOptions(json=True, workload=Workload(**wishes), **options))
