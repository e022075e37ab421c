// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package advice explains each reason of a VirtualMachine: what it means, and which steps help.
//
// Start with For. Every reason that the API package exports has an entry in table.go, which a
// test checks.
package advice

import (
	"iter"
	"maps"
	"slices"
	"strings"
)

// Need says which kind of help a reason needs before it ends.
type Need int

const (
	// Nothing is needed: the server is as the spec says.
	Nothing Need = iota
	// Time is all that is needed: the step is in progress, or is tried again.
	Time
	// Attention is needed if time did not help: the failure may be one of a moment, or last until
	// a person removes its cause.
	Attention
	// Person means that a person has to act.
	Person
)

// Advice explains a reason.
type Advice struct {
	Need Need
	// Means is a sentence about the VM.
	Means string
	// Do says what to do, in sentences. It is empty if there is nothing to do.
	Do string
	// ByDriver has additional steps for a driver, keyed by its name.
	ByDriver map[string]string
}

// For returns the advice about a reason, and whether there is one. A later version of Drover may
// have reasons that this one does not know.
func For(reason string) (Advice, bool) {
	a, ok := reasons[reason]
	return a, ok
}

// All returns the reasons about which there is something to do, of VMs and then of events, each
// in the order of the alphabet.
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

// AllSteps returns what to do about a VM of any driver.
func (a Advice) AllSteps(n Names) string {
	a.Do += a.byDriver()
	return a.Steps(n)
}

// byDriver returns what to do in addition, with the name of each driver.
func (a Advice) byDriver() (text string) {
	for _, driver := range slices.Sorted(maps.Keys(a.ByDriver)) {
		text += " With " + driver + ": " + a.ByDriver[driver]
	}
	return text
}

// Names are the words of a VM's advice.
type Names struct {
	// Program and Kubectl are how this program and kubectl are called.
	Program, Kubectl string
	VM, Driver       string
}

// Steps returns what to do about a VM.
func (a Advice) Steps(n Names) string {
	text := strings.TrimSpace(a.Do + " " + a.ByDriver[n.Driver])
	return strings.NewReplacer("{program}", n.Program, "{kubectl}", n.Kubectl, "{vm}", n.VM).Replace(text)
}
