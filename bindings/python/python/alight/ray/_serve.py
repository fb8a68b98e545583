def serve_app(*a, **k): raise NotImplementedError
