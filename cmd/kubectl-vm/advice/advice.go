// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package advice explains each reason of a VirtualMachine: what the reason means, and which steps help.
//
// Start with Find. A test checks that every reason of the API package has an entry in table.go.
package advice

import (
	"iter"
	"maps"
	"slices"
	"strings"
)

// Need says what has to happen before a VM loses a reason.
type Need int

const (
	// Nothing has to happen: the server is as the spec says.
	Nothing Need = iota
	// Time has to pass: the step is in progress, or Drover tries the step again.
	Time
	// Attention means that a user may have to act: the failure is transient, or lasts until a
	// user removes its cause.
	Attention
	// Action means that a user has to act.
	Action
)

// Advice explains a reason.
type Advice struct {
	Need Need
	// Means is a sentence about the VM.
	Means string
	// Do says what to do, in sentences. It is empty if there is nothing to do.
	Do string
	// ByDriver has additional steps, keyed by the name of the driver that needs them.
	ByDriver map[string]string
}

// Find returns the advice about a reason, and false if the reason is unknown: it may come from a
// later version of Drover.
func Find(reason string) (Advice, bool) {
	a, ok := reasons[reason]
	return a, ok
}

// All returns the reasons that need an action, with their advice: first the reasons of VMs, then
// those of events, each group in alphabetical order.
func All() iter.Seq2[string, Advice] {
	return func(yield func(string, Advice) bool) {
		for _, table := range []map[string]Advice{reasons, events} {
			for _, reason := range slices.Sorted(maps.Keys(table)) {
				if a := table[reason]; a.Do+a.byDriver() != "" && !yield(reason, a) {
					return
				}
			}
		}
	}
}

// AllSteps returns the steps for a VM, with the additional steps of every driver.
func (a Advice) AllSteps(n Names) string {
	a.Do += a.byDriver()
	return a.Steps(n)
}

// byDriver returns the additional steps of all drivers, each with the driver's name.
func (a Advice) byDriver() (text string) {
	for _, driver := range slices.Sorted(maps.Keys(a.ByDriver)) {
		text += " With " + driver + ": " + a.ByDriver[driver]
	}
	return text
}

// Names are the words that replace the placeholders in the advice about a VM.
type Names struct {
	// Program and Kubectl are the commands that call this program and kubectl.
	Program, Kubectl string
	VM, Driver       string
}

// Steps returns the steps for a VM, with the additional steps of its driver.
func (a Advice) Steps(n Names) string {
	text := strings.TrimSpace(a.Do + " " + a.ByDriver[n.Driver])
	return strings.NewReplacer("{program}", n.Program, "{kubectl}", n.Kubectl, "{vm}", n.VM).Replace(text)
}
