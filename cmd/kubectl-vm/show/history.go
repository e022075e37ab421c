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
	"cloudnative.tw/drover/cmd/kubectl-vm/servers"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
	"cloudnative.tw/drover/internal/policy/decisions"
)

const (
	// maxHistory is the largest answer of a replica, in bytes.
	maxHistory = 8 << 20
	// historyTries is how many connections are opened in order to reach the replica that leads.
	// Each connection may reach another replica.
	historyTries = 12
	// historyFailures is the number of failures after which no further connection is opened.
	historyFailures = 3
	// historyColumns is the width of the printed history.
	historyColumns = 80
)

// showHistory prints the last decisions about a VM.
func (e *explainOptions) showHistory(ctx context.Context, name string) error {
	target, err := vms.FindTarget(ctx, e.Options, name, streamsapi.Decisions)
	if err != nil {
		return err
	}
	all, err := readHistories(ctx, target)
	switch {
	case err != nil && len(all) == 0:
		return target.WrapError(ctx, err)
	case err != nil:
		e.PrintWarning("not every replica answers, so decisions of the leader may be missing: " + printable.Line(target.WrapError(ctx, err).Error()))
	}
	if e.output.IsSet() {
		return printable.JSON(e.Out, decisions.Histories{Replicas: all})
	}
	return e.printHistories(target, all)
}

// readHistories reads the histories of replicas until the leader has answered. It returns one history of
// each replica that has answered, the leader's last, also with an error.
func readHistories(ctx context.Context, target vms.Target) ([]decisions.History, error) {
	var all []decisions.History
	failures := 0
	for range historyTries {
		h, err := readHistory(ctx, target)
		target.Client.Close() // so that the next request opens a connection, which may reach another replica
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

func readHistory(ctx context.Context, target vms.Target) (h decisions.History, err error) {
	body, err := target.OpenStream(ctx, streamsapi.Decisions, nil)
	if err != nil {
		return h, err
	}
	defer func() { _ = body.Close() }()
	if err := json.NewDecoder(io.LimitReader(body, maxHistory)).Decode(&h); err != nil {
		return h, fmt.Errorf("read the decisions: %w", err)
	}
	return h, nil
}

func (e *explainOptions) printHistories(target vms.Target, all []decisions.History) error {
	var b strings.Builder
	var records []decisions.Record
	s := kit.TerminalOf(e.Out)
	s.Width = historyColumns
	fmt.Fprintf(&b, "%s\n", s.Paint(fmt.Sprintf("Decisions about %s/%s, the newest last.", target.Namespace, target.Name), kit.Bold))
	for i := range all {
		writeIndented(&b, s, "", replicaText(&all[i]))
		records = append(records, all[i].Decisions...)
	}
	slices.SortStableFunc(records, func(a, b decisions.Record) int { return a.At().Compare(b.At()) })
	writeRecords(&b, s, records, len(all) > 1)
	_, err := fmt.Fprint(e.Out, b.String())
	return err
}

// replicaText says whether a replica leads, and which of its decisions it remembers.
func replicaText(h *decisions.History) string {
	began := instantText(h.Since)
	text := fmt.Sprintf("Replica %s (Drover %s)", printable.Line(h.Replica), printable.Line(h.Version))
	switch {
	case h.Leads:
		text += fmt.Sprintf(" leads with epoch %d, and remembers %s about the VM", h.Epoch, servers.Count(len(h.Decisions), "decision"))
	case len(h.Decisions) > 0:
		text += fmt.Sprintf(" does not lead, but remembers %s about the VM from when it led", servers.Count(len(h.Decisions), "decision"))
	default:
		return text + " does not lead, and only a leader decides. It was started at " + began + "."
	}
	text += fmt.Sprintf("; it was started at %s.", began)
	if h.Dropped > 0 {
		text += fmt.Sprintf(" It has forgotten %s, counted over all VMs.", servers.Count(int(h.Dropped), "older decision")) //nolint:gosec // a count of decisions
	}
	return text
}

// writeRecords writes records of decisions, with the names of the replicas if namesReplicas is set.
func writeRecords(b *strings.Builder, s kit.Terminal, records []decisions.Record, namesReplicas bool) {
	for i := range records {
		r := &records[i]
		when := r.When()
		if namesReplicas {
			when += ", by " + printable.Line(r.Replica)
		}
		b.WriteString("\n" + s.Paint(strings.Join(printable.Wrap(when, s.Width), "\n  "), kit.Bold) + "\n")
		for _, sentence := range r.Sentences() {
			writeIndented(b, s, "  ", printable.Line(sentence))
		}
	}
}
