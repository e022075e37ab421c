// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"fmt"
	"io"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
)

// view has the parts that show and explain print about a VM. Empty parts are left out.
type view struct {
	diagnosis
	// table has the properties of the VM.
	table   []row
	network *streamsapi.NetworkStatistics
	events  []corev1.Event
	// eventsError says why the events could not be read.
	eventsError string
}

// row is a line of the table.
type row struct{ name, value string }

// describer describes VMs as they are now, with commands that the user can copy.
type describer struct {
	// program and kubectl are the commands with which the user calls this program and kubectl.
	program, kubectl string
	now              time.Time
}

// newDescriber returns a describer for the present time.
func newDescriber(o *kit.Options) describer {
	return describer{program: o.Program, kubectl: o.Kubectl, now: o.Clock.Now()}
}

// viewOf returns the view of a VM, without its network and its events.
func (d describer) viewOf(vm *api.VirtualMachine) view {
	return view{diagnosis: d.diagnoseVM(vm), table: d.tableOf(vm)}
}

var verdictStyles = map[Verdict]kit.Style{verdictHealthy: kit.Green, verdictWaiting: kit.Yellow, verdictNeedsYou: kit.Red}

func (d describer) printView(out io.Writer, v *view) error {
	s := kit.TerminalOf(out)
	s.Width = min(s.Width, kit.ReadableWidth)
	var b strings.Builder
	b.WriteString(s.Paint(v.headline, kit.Bold+verdictStyles[v.verdict]) + ".\n")
	if v.message != "" {
		writeIndented(&b, s, "  ", v.message)
	}
	writeTable(&b, s, v.table)
	if len(v.facts) > 0 {
		b.WriteString("\n")
	}
	for _, fact := range v.facts {
		writeIndented(&b, s, "", fact)
	}
	writeSteps(&b, s, v.steps)
	writeNetwork(&b, s, v.network, d.now)
	if v.eventsError != "" {
		fmt.Fprintf(&b, "\n%s\n", s.Paint("The events of the VM cannot be read: "+printable.Line(v.eventsError), kit.Faint))
	}
	writeEvents(&b, s, v.events, d.now)
	_, err := fmt.Fprint(out, b.String())
	return err
}

// valueColumn is the column in which the values of the table begin.
const valueColumn = 14

func writeTable(b *strings.Builder, s kit.Terminal, table []row) {
	for _, r := range table {
		if r.value == "" {
			continue
		}
		lines := printable.Wrap(printable.Line(r.value), max(s.Width-valueColumn, 0))
		fmt.Fprintf(b, "  %s%s\n", s.Paint(fmt.Sprintf("%-*s", valueColumn-2, r.name), kit.Faint), lines[0])
		for _, line := range lines[1:] {
			b.WriteString(strings.Repeat(" ", valueColumn) + line + "\n")
		}
	}
}

func writeSteps(b *strings.Builder, s kit.Terminal, steps []string) {
	if len(steps) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%s\n", s.Paint("What to do:", kit.Bold))
	for _, step := range steps {
		writeIndented(b, s, "  ", step)
	}
}

// writeIndented writes an indented text that is wrapped to the width of the screen.
func writeIndented(b *strings.Builder, s kit.Terminal, indent, text string) {
	for _, line := range printable.Wrap(text, max(s.Width-len(indent), 0)) {
		b.WriteString(indent + line + "\n")
	}
}
