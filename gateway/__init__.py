"""The gateway: HTTP, the OpenAI protocol, conversations and tenants. It never touches a tensor."""
