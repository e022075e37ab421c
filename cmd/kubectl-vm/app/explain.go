// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
)

// exitUnexplained is the exit code of an explain that has nothing to say: no such VM, no
// cluster, wrong flags.
const exitUnexplained = 3

// mostEvents is how many events explain prints.
const mostEvents = 6

type explainOptions struct {
	*Options
	history bool
	output  string
}

// NewExplainCommand returns the verb explain.
func NewExplainCommand(o *Options) *cobra.Command {
	e := &explainOptions{Options: o}
	cmd := &cobra.Command{
		Use:     "explain NAME",
		GroupID: groupObserve,
		Short:   "Say why a VM is not ready, and how to help",
		Long: "Say in sentences why a VM is not ready: what Drover is doing, how often that failed, when it is\n" +
			"tried again, whether the engine answers, what happened last, and how to help. For a machine also\n" +
			"what its network has carried and refused, to everyone who may get virtualmachines/interfaces.\n\n" +
			"--history shows what the controller has decided about the VM lately: when, what it saw, what\n" +
			"it decided and how each step ended. It needs the right to get virtualmachines/decisions.\n\n" +
			"The exit code is\n" +
			"  0  if the VM is as its spec says\n" +
			"  1  if it is not yet, and time may help\n" +
			"  2  if a person has to act\n" +
			"  3  if nothing is known: no such VM, no answer, wrong flags\n" +
			"With --history it is 0 or 3.",
		Example: o.formatExamples("explain web", "explain web >/dev/null && echo healthy", "explain web --history",
			"explain web --history -o json >web.json"),
		Args: func(_ *cobra.Command, args []string) error { return asUnexplained(e.checkFlags(args)) },
		RunE: func(cmd *cobra.Command, args []string) error {
			if e.history {
				return asUnexplained(e.showHistory(cmd.Context(), args[0]))
			}
			return e.run(cmd.Context(), args[0])
		},

		ValidArgsFunction: o.CompleteVM,
	}
	e.addFlags(cmd)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return asUnexplained(err) })
	return cmd
}

func (e *explainOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&e.history, "history", false, "show the last decisions of the controller about the VM")
	f.StringVarP(&e.output, "output", "o", "", "output format of --history: json")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"json"}, cobra.ShellCompDirectiveNoFileComp))
}

// asUnexplained gives an error the exit code for a cause that is not known, unless it has a code already.
func asUnexplained(err error) error {
	var own *ExitError
	if err == nil || errors.As(err, &own) {
		return err
	}
	return &ExitError{Code: exitUnexplained, Err: err}
}

// needOneName checks that one VM is named.
func needOneName(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%d arguments: give one NAME", len(args))
	}
	return nil
}

func (e *explainOptions) run(ctx context.Context, arg string) error {
	name, err := parseName(arg)
	if err != nil {
		return asUnexplained(err)
	}
	namespace, err := e.Namespace()
	if err != nil {
		return asUnexplained(err)
	}
	vm, err := e.GetVM(ctx, namespace, name)
	if err != nil {
		return asUnexplained(err)
	}
	v, err := e.explainVM(ctx, vm)
	if err != nil {
		return asUnexplained(err)
	}
	if v != verdictHealthy {
		return &ExitError{Code: int(v)}
	}
	return nil
}

// explainVM prints why a VM is as it is, and the steps that help.
func (o *Options) explainVM(ctx context.Context, vm *api.VirtualMachine) (verdict, error) {
	v := o.viewOf(vm)
	v.table = nil
	v.network = o.networkOf(ctx, vm)
	v.events, v.eventsErr = o.eventsOf(ctx, vm)
	return v.verdict, o.printView(v)
}

// eventsOf returns the last events about a VM, the newest first.
func (o *Options) eventsOf(ctx context.Context, vm *api.VirtualMachine) ([]corev1.Event, error) {
	c, err := o.Core()
	if err != nil {
		return nil, err
	}
	list := &corev1.EventList{}
	err = c.Get().Namespace(vm.Namespace).Resource("events").
		Param("fieldSelector", fields.OneTermEqualSelector("involvedObject.uid", string(vm.UID)).String()).Do(ctx).Into(list)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(list.Items, func(a, b corev1.Event) int { return eventTime(&b).Compare(eventTime(&a)) })
	events := mergeEvents(list.Items)
	return events[:min(len(events), mostEvents)], nil
}

// mergeEvents counts events in a row that say the same.
func mergeEvents(events []corev1.Event) []corev1.Event {
	var merged []corev1.Event
	for i := range events {
		next := events[i]
		next.Count = int32(eventCount(&next)) //nolint:gosec // it was an int32
		if n := len(merged) - 1; n >= 0 && merged[n].Reason == next.Reason && merged[n].Message == next.Message {
			merged[n].Count += next.Count
			continue
		}
		merged = append(merged, next)
	}
	return merged
}

// eventCount returns how often an event was seen.
func eventCount(e *corev1.Event) int {
	if e.Series != nil {
		return int(e.Series.Count)
	}
	return max(int(e.Count), 1)
}

// eventTime returns when an event was last seen.
func eventTime(e *corev1.Event) time.Time {
	if e.Series != nil && !e.Series.LastObservedTime.IsZero() {
		return e.Series.LastObservedTime.Time
	}
	for _, at := range []time.Time{e.LastTimestamp.Time, e.EventTime.Time, e.FirstTimestamp.Time} {
		if !at.IsZero() {
			return at
		}
	}
	return e.CreationTimestamp.Time
}

func (o *Options) writeEvents(b *strings.Builder, s screen, events []corev1.Event, err error) {
	if err != nil {
		fmt.Fprintf(b, "\n%s\n", s.paintText("Its events cannot be read: "+printable.Line(o.describe(err)), faint))
		return
	}
	if len(events) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%s\n", s.paintText("Last events:", bold))
	t := table{columns: []column{{}, {}, {}}, noHeaders: true}
	for i := range events {
		kind := cell{text: events[i].Reason}
		if events[i].Type == corev1.EventTypeWarning {
			kind.style = yellow
		}
		t.addRow(cell{text: "  " + o.ageOf(eventTime(&events[i]))}, kind, cell{}) // the text follows, wrapped
	}
	widths := t.widths()
	indent := widths[0] + widths[1] + 2*columnGap
	for i, begin := range t.lines(screen{color: s.color}) {
		lines := printable.Wrap(printable.Line(eventText(&events[i])), max(s.width-indent, 0))
		b.WriteString(strings.TrimSuffix(begin, "\n") + lines[0] + "\n")
		for _, line := range lines[1:] {
			b.WriteString(strings.Repeat(" ", indent) + line + "\n")
		}
	}
}

func eventText(e *corev1.Event) string {
	if e.Count > 1 {
		return fmt.Sprintf("%s (%d times)", e.Message, e.Count)
	}
	return e.Message
}
