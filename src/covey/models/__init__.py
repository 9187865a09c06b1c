"""Model loading, tokenization and the fast Llama/Qwen forward that engine and trainer share."""
