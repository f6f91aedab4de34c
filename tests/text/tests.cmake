# Tokenizers and chat templates.
sluice_test(test_text_chats LIBS sluice_data LABELS cpu debug)
sluice_test(test_text_tokenizer LIBS sluice_text LABELS cpu debug)
sluice_test(test_text_pieces LIBS sluice_text LABELS cpu debug)
sluice_test(test_text_long LIBS sluice_text LABELS cpu debug)
sluice_test(test_text_sentencepiece LIBS sluice_text LABELS cpu debug) # skipped without the library
if(SLUICE_SENTENCEPIECE_FOUND)
    target_sources(test_text_sentencepiece PRIVATE text/sentencepiece_model.cc)
    set_source_files_properties(text/sentencepiece_model.cc PROPERTIES COMPILE_OPTIONS "-std=gnu++17;-Wall;-Wextra")
    target_compile_definitions(test_text_sentencepiece PRIVATE SLUICE_HAS_SENTENCEPIECE)
endif()
add_executable(chat-tool reference/chat_tool.c) # for reference/check_chats.py, on demand
target_link_libraries(chat-tool PRIVATE sluice_text PkgConfig::JANSSON)
add_executable(token-tool reference/token_tool.c) # for reference/check_tokenizer.py, on demand
target_link_libraries(token-tool PRIVATE sluice_text)
