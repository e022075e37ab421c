// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
)

// maxEvents is how many events explain prints.
const maxEvents = 6

// readEvents returns the last events about a VM, the newest first.
func readEvents(ctx context.Context, o *kit.Options, vm *api.VirtualMachine) ([]corev1.Event, error) {
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
	return events[:min(len(events), maxEvents)], nil
}

// mergeEvents merges equal events in a row into one event, and adds their counts.
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

func writeEvents(b *strings.Builder, s kit.Terminal, events []corev1.Event, now time.Time) {
	if len(events) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%s\n", s.Paint("Last events:", kit.Bold))
	t := kit.Table{Columns: []kit.Column{{}, {}, {}}, NoHeaders: true}
	for i := range events {
		kind := kit.Cell{Text: events[i].Reason}
		if events[i].Type == corev1.EventTypeWarning {
			kind.Style = kit.Yellow
		}
		t.AddRow(kit.Cell{Text: "  " + vms.AgeText(now, eventTime(&events[i]))}, kind, kit.Cell{}) // the wrapped text is added below
	}
	widths := t.Widths()
	indent := widths[0] + widths[1] + 2*kit.ColumnGap
	for i, begin := range t.Lines(kit.Terminal{HasColors: s.HasColors}) {
		lines := printable.Wrap(printable.Line(eventText(&events[i])), max(s.Width-indent, 0))
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
