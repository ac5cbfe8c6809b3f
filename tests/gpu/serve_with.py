"""``decideploy serve`` with wishes that the command line does not take: MODEL PORT JSON-of-Workload."""

import json
import sys

from decideploy.plan import Workload
from decideploy.serve import ServeOptions, serve

if __name__ == "__main__":
    model, port, wishes = sys.argv[1:]
    serve(ServeOptions(model=model, port=int(port), json=True, workload=Workload(**json.loads(wishes))))
