"""The markers of hooks, in a module of their own so that importing them is cheap."""

import pluggy

hookspec = pluggy.HookspecMarker("gemkit")
hookimpl = pluggy.HookimplMarker("gemkit")
