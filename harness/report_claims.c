/* The report's claims: a table of them, and each with all that decided it. */
#include "harness/report_document.h"

#include <stdlib.h>
#include <string.h>

static const char *text_or(const char *text, const char *otherwise) {
  return text != NULL ? text : otherwise;
}

static bool has_suite(const ReportInput *input, const Claim *claim) {
  for (int32_t s = 0; s < claim->suites->count; s++)
    for (int32_t i = 0; i < input->records.count; i++) {
      const char *suite = vl_record_text(input->records.records[i], "suite");
      if (suite != NULL && strcmp(suite, text_or(claim->suites->items[s]->text, "")) == 0) return true;
    }
  return false;
}

/* Findings besides the one that gives the verdict. */
static void fill_findings(Document *document, const ClaimVerdict *verdict, ClaimPassage *claim) {
  claim->findings = vl_arena_allocate(document->arena, sizeof(char *) * (VL_MAX_FINDINGS + 1));
  for (int32_t i = 0; i < verdict->finding_count; i++) {
    const Finding *finding = &verdict->findings[i];
    if (i == verdict->headline) continue;
    claim->findings[claim->finding_count++] = vl_document_format(
        document, "%s%s: %s. %s", finding->scope, finding->in_setting ? "" : " (elsewhere)",
        vl_finding_verdict_name(finding), finding->numbers);
  }
}

/* Borrowed text belongs to the claims file, which outlives the document only by the caller's promise: copied.
 */
static ClaimPassage *passage_of(Document *document, const ClaimVerdict *verdict) {
  ClaimPassage *claim = vl_arena_allocate(document->arena, sizeof(*claim));
  const Claim *of = verdict->claim;
  char scope[2 * VL_SCOPE_BYTES], region[VL_NUMBERS_BYTES], fixed[VL_SCOPE_BYTES];
  vl_claim_scope(verdict, scope, sizeof(scope));
  vl_claim_region_text(of, region, sizeof(region));
  vl_claim_fixed_text(verdict, fixed, sizeof(fixed));
  claim->id = vl_arena_copy_text(document->arena, of->id);
  claim->verdict = vl_verdict_name(verdict->verdict);
  claim->section = vl_arena_copy_text(document->arena, of->section);
  claim->sentence = vl_arena_copy_text(document->arena, of->sentence);
  claim->translation = vl_arena_copy_text(document->arena, of->translation);
  claim->scope = vl_arena_copy_text(document->arena, scope);
  claim->numbers = vl_arena_copy_text(document->arena, verdict->numbers);
  claim->provenance = vl_claim_provenance(verdict);
  claim->command = vl_arena_copy_text(document->arena, of->command);
  claim->trap = vl_arena_copy_text(document->arena, of->trap);
  claim->region = vl_arena_copy_text(document->arena, region);
  claim->fixed = vl_arena_copy_text(document->arena, fixed);
  fill_findings(document, verdict, claim);
  return claim;
}

ReportClaims vl_report_decide(Document *document, const ReportInput *input) {
  int32_t most = input->claims != NULL ? input->claims->count : 0;
  ReportClaims made = {.claims = vl_arena_allocate(document->arena, sizeof(void *) * (size_t)(most + 1))};
  ClaimVerdict *verdict = vl_allocate(sizeof(*verdict));
  for (int32_t i = 0; i < most; i++) {
    const Claim *claim = &input->claims->claims[i];
    if (!has_suite(input, claim)) continue;
    vl_claim_decide(claim, &input->records, verdict);
    made.claims[made.count++] = passage_of(document, verdict);
  }
  free(verdict);
  return made;
}

void vl_report_claims(Document *document, const ReportClaims *claims) {
  static const TableColumn columns[] = {{"claim", "", false},
                                        {"verdict", "", false},
                                        {"what the article says", "", false},
                                        {"what was found", "", false},
                                        {"numbers are", "", false}};
  vl_document_add(document, PASSAGE_HEADING, false, "Claims");
  if (claims->count == 0) {
    vl_document_add(document, PASSAGE_NOTE, true,
                    "No claim of the article is decided by this store's suite.");
    return;
  }
  Passage *table =
      vl_document_add(document, PASSAGE_TABLE, false, "Claims of the article that this store's suites test");
  vl_document_table(document, table, columns, sizeof(columns) / sizeof(columns[0]), claims->count);
  table->anchors = vl_arena_allocate(document->arena, sizeof(char *) * (size_t)(claims->count + 1));
  for (int32_t i = 0; i < claims->count; i++) {
    const ClaimPassage *claim = claims->claims[i];
    table->anchors[i] = vl_document_format(document, "claim-%s", claim->id);
    table->rows[i][0] = claim->id;
    table->rows[i][1] = claim->verdict;
    table->rows[i][2] = claim->translation;
    table->rows[i][3] = claim->numbers;
    table->rows[i][4] = claim->provenance;
  }
}

void vl_report_claims_lines(Document *document, const ReportClaims *claims) {
  for (int32_t i = 0; i < claims->count; i++) {
    Passage *passage = vl_document_add(document, PASSAGE_VERDICT, true, claims->claims[i]->translation);
    passage->claim = claims->claims[i];
  }
}

void vl_report_claims_whole(Document *document, const ReportClaims *claims) {
  if (claims->count == 0) return;
  vl_document_add(document, PASSAGE_HEADING, false, "Claims in full");
  for (int32_t i = 0; i < claims->count; i++) {
    Passage *passage = vl_document_add(document, PASSAGE_CLAIM, false, claims->claims[i]->translation);
    passage->claim = claims->claims[i];
    passage->name = claims->claims[i]->id;
  }
}
