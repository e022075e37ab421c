// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
	"cloudnative.tw/drover/internal/policy/decisions"
)

const (
	// maxHistory limits the answer of a replica, in bytes.
	maxHistory = 8 << 20
	// historyTries is how often the service of streams is asked until the replica answers that
	// leads. Each connection may reach another replica.
	historyTries = 12
	// historyFailures is the number of failures after which no further replica is asked.
	historyFailures = 3
	// historyColumns is how wide the history is.
	historyColumns = 80
)

// showHistory prints the last decisions about a VM.
func (e *explainOptions) showHistory(ctx context.Context, name string) error {
	at, err := vms.FindTarget(ctx, e.Options, name, streamsapi.Decisions)
	if err != nil {
		return err
	}
	all, err := readHistories(ctx, at)
	switch {
	case err != nil && len(all) == 0:
		return at.WrapError(ctx, err)
	case err != nil:
		e.PrintWarning("not every replica answers, and decisions of the one that leads may be missing: " + printable.Line(at.WrapError(ctx, err).Error()))
	}
	if e.output.IsSet() {
		return printable.JSON(e.Out, decisions.Histories{Replicas: all})
	}
	return e.printHistories(at, all)
}

// readHistories asks replicas until one that leads has answered. It returns one answer of each,
// the leader's last. With an error it returns those that it has.
func readHistories(ctx context.Context, from vms.Target) ([]decisions.History, error) {
	var all []decisions.History
	failures := 0
	for range historyTries {
		h, err := readHistory(ctx, from)
		from.Client.Close() // the next connection may be to another replica
		if err != nil {
			if failures++; failures < historyFailures {
				continue
			}
			return all, err
		}
		all = slices.DeleteFunc(all, func(other decisions.History) bool { return other.Replica == h.Replica })
		all = append(all, h)
		if h.Leads {
			return all, nil
		}
	}
	return all, nil
}

func readHistory(ctx context.Context, from vms.Target) (h decisions.History, err error) {
	body, err := from.OpenStream(ctx, streamsapi.Decisions, nil)
	if err != nil {
		return h, err
	}
	defer func() { _ = body.Close() }()
	if err := json.NewDecoder(io.LimitReader(body, maxHistory)).Decode(&h); err != nil {
		return h, fmt.Errorf("read the decisions: %w", err)
	}
	return h, nil
}

func (e *explainOptions) printHistories(from vms.Target, all []decisions.History) error {
	var b strings.Builder
	var records []decisions.Record
	s := kit.ScreenOf(e.Out)
	s.Width = historyColumns
	fmt.Fprintf(&b, "%s\n", s.Paint(fmt.Sprintf("Decisions about %s/%s, the newest last.", from.Namespace, from.Name), kit.Bold))
	for i := range all {
		writeIndented(&b, s, "", replicaText(&all[i]))
		records = append(records, all[i].Decisions...)
	}
	slices.SortStableFunc(records, func(a, b decisions.Record) int { return a.At().Compare(b.At()) })
	writeRecords(&b, s, records, len(all) > 1)
	_, err := fmt.Fprint(e.Out, b.String())
	return err
}

// replicaText says which replica made these decisions, and which of them are missing.
func replicaText(h *decisions.History) string {
	began := instantText(h.Since)
	text := fmt.Sprintf("Replica %s (Drover %s)", printable.Line(h.Replica), printable.Line(h.Version))
	switch {
	case h.Leads:
		text += fmt.Sprintf(" leads with epoch %d, and remembers %d of them", h.Epoch, len(h.Decisions))
	case len(h.Decisions) > 0:
		text += fmt.Sprintf(" does not lead; it remembers %d of when it did", len(h.Decisions))
	default:
		return text + " does not lead, and only a leader decides. It began at " + began + "."
	}
	text += fmt.Sprintf("; it began at %s.", began)
	if h.Dropped > 0 {
		text += fmt.Sprintf(" It has forgotten %d older decisions, about all VMs.", h.Dropped)
	}
	return text
}

// writeRecords writes what was decided, with who decided if there are several.
func writeRecords(b *strings.Builder, s kit.Screen, records []decisions.Record, several bool) {
	for i := range records {
		r := &records[i]
		when := r.When()
		if several {
			when += ", by " + printable.Line(r.Replica)
		}
		b.WriteString("\n" + s.Paint(strings.Join(printable.Wrap(when, s.Width), "\n  "), kit.Bold) + "\n")
		for _, sentence := range r.Sentences() {
			writeIndented(b, s, "  ", printable.Line(sentence))
		}
	}
}
