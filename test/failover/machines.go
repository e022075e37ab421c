// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver/journal"
	"cloudnative.tw/drover/test/failover/births"
)

// MachineEvidence is the evidence where servers are QEMU machines: what leaders
// wrote to the driver's journal, and what the recorder, which is no part of Drover,
// saw of their processes.
type MachineEvidence struct {
	Evidence
	Births []births.ProcessStart
	// Left lists the processes and files that were found at the end, after all was
	// deleted.
	Left []string
}

// The rules for machines.
const (
	// RuleAlone says that while a QEMU runs for a UID, no other is started for it.
	RuleAlone Rule = "one QEMU at a time"
	// RuleRun says that one QEMU is started for each run.
	RuleRun Rule = "one QEMU a run"
	// RuleNothing says that nothing is left at the end.
	RuleNothing Rule = "nothing is left behind"
)

// JudgeMachines returns the rules that were broken.
func JudgeMachines(e MachineEvidence) []Violation {
	all := slices.Concat(Fallen(e.Journal), e.finalizers(), e.removals())
	born := map[types.UID][]births.ProcessStart{}
	for _, b := range e.Births {
		born[b.UID] = append(born[b.UID], b)
	}
	for _, uid := range slices.Sorted(maps.Keys(born)) {
		all = append(all, alone(born[uid])...)
	}
	for _, uid := range slices.Sorted(maps.Keys(e.Asked)) {
		all = append(all, e.startsOf(uid, len(born[uid]))...)
		delete(born, uid)
	}
	for uid := range born {
		all = append(all, Violation{RuleKept, uid, "a QEMU was started for it, and no user asked for it"})
	}
	for _, left := range e.Left {
		all = append(all, Violation{RuleNothing, "", left})
	}
	return all
}

// alone checks the births of one server.
func alone(all []births.ProcessStart) []Violation {
	var broken []Violation
	runs := map[string]int{}
	for _, b := range all {
		if len(b.Others) > 0 {
			broken = append(broken, Violation{RuleAlone, b.UID, fmt.Sprintf("process %d was started at %s while %v ran", b.PID, b.At.Format(time.StampMilli), b.Others)})
		}
		if before, known := runs[b.Run]; known {
			broken = append(broken, Violation{RuleRun, b.UID, fmt.Sprintf("process %d was started for run %q, as %d was", b.PID, b.Run, before)})
		}
		runs[b.Run] = b.PID
	}
	return broken
}

// startsOf compares the number of starts with what a user requested.
func (e MachineEvidence) startsOf(uid types.UID, count int) []Violation {
	asked := e.Asked[uid]
	if count >= asked.AtLeast && count <= asked.AtMost {
		return nil
	}
	return []Violation{{RuleStarts, uid, fmt.Sprintf("%s was started %d times: %d to %d times were asked for", asked.Name, count, asked.AtLeast, asked.AtMost)}}
}

// removals checks that a server is created once, and removed only after a user
// requested that.
func (e MachineEvidence) removals() []Violation {
	var broken []Violation
	for uid, entries := range byServer(e.Journal) {
		asked, known := e.Asked[uid]
		if !known {
			broken = append(broken, Violation{RuleKept, uid, "there is an entry for it, and no user asked for it"})
			continue
		}
		for n, entry := range entries {
			if entry.Action == journal.ActionCreate && n > 0 && entries[n-1].Action != journal.ActionCreate {
				broken = append(broken, Violation{RuleOnce, uid, show(entry) + ", though it had been made"})
			}
			if entry.Action == journal.ActionDelete && (asked.DeletedAt.IsZero() || entry.At.Before(asked.DeletedAt)) {
				broken = append(broken, Violation{RuleKept, uid, show(entry) + ", and no user had asked for that"})
			}
		}
	}
	return broken
}

// Story describes all that is known of a machine, for people.
func (e MachineEvidence) Story(uid types.UID) string {
	lines := []string{e.History(uid)}
	for _, b := range e.Births {
		if b.UID == uid {
			lines = append(lines, fmt.Sprintf("QEMU %d was started at %s for run %q; beside it ran %v", b.PID, b.At.Format(time.StampMilli), b.Run, b.Others))
		}
	}
	return strings.Join(lines, "\n")
}

// Summary describes a run in one line.
func (e MachineEvidence) Summary() string {
	faults, deeds, deleted := map[Kind]int{}, map[journal.Action]int{}, 0
	epochs := map[uint64]bool{}
	for _, f := range e.Faults {
		faults[f.Kind]++
	}
	for _, entry := range e.Journal {
		deeds[entry.Action]++
		epochs[entry.Epoch] = true
	}
	for _, asked := range e.Asked {
		if !asked.DeletedAt.IsZero() {
			deleted++
		}
	}
	return fmt.Sprintf("faults %s\nepochs %d\nVMs %d, %d of them deleted\nQEMU started %d times\ndeeds %s\nlooks at finalizers %d",
		list(faults), len(epochs), len(e.Asked), deleted, len(e.Births), list(deeds), len(e.Sights))
}
