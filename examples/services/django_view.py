"""A Django view that publishes to mist, in the smallest project that Django takes.

pip install django gunicorn mist-pubsub
MIST_URL=tcp://127.0.0.1:1445 gunicorn -w 4 --preload django_view:application

curl -X POST http://127.0.0.1:8000/orders/eu -d 17
"""

import os

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from process_client import mist

from mist.client import BadArgument, ClientError
from mist.errors import CommandError

settings.configure(
    ROOT_URLCONF=__name__,
    SECRET_KEY=os.environ.get("DJANGO_SECRET_KEY", "only for this example"),
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
)


@csrf_exempt  # for curl; leave it out where forms are sent
@require_POST
def create(request: HttpRequest, region: str) -> JsonResponse:
    """Publish an order; answered once it is durable."""
    try:
        return JsonResponse({"id": mist().store(["order", region], request.body)}, status=201)
    except BadArgument as error:
        return JsonResponse({"error": str(error)}, status=400)
    except ClientError as error:  # this service can't reach mist, or mist can't store
        return JsonResponse({"error": str(error)}, status=503)
    except CommandError as error:  # tags or data that can't be published
        return JsonResponse({"error": str(error)}, status=400)


urlpatterns = [path("orders/<str:region>", create)]
application = get_wsgi_application()
