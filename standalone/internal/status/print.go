// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"cloudnative.tw/drover/cmd/kubectl-vm/findings"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/standalone/internal/bytesize"
	"cloudnative.tw/drover/standalone/internal/doctor"
	"cloudnative.tw/drover/standalone/internal/engines"
)

// Print prints the status for people. Each cell is made safe for a terminal separately, since the
// warnings have colors, and since a tab in a cell would move columns.
func (s *Status) Print(out io.Writer, now time.Time, style findings.Style) error {
	var text bytes.Buffer
	fmt.Fprintln(&text, printable.Line(s.headlineAt(now)))
	if s.State != StateAbsent {
		s.printBasics(&text, now)
		s.printDrivers(&text)
	}
	if err := s.printWarnings(&text, style); err != nil {
		return err
	}
	_, err := printable.Raw(out).Write(text.Bytes())
	return err
}

func (s *Status) headlineAt(now time.Time) string {
	name := strings.TrimSpace("Drover " + s.Version)
	since := ""
	if !s.StartedAt.IsZero() {
		since = ", for " + ageText(now, s.StartedAt)
	}
	switch s.State {
	case StateAbsent:
		return fmt.Sprintf("Drover has not run here: there is no data dir %s", s.DataDir)
	case StateStopped:
		return name + " is stopped" + s.lastEnd(now)
	case StateReady:
		return fmt.Sprintf("%s runs (process %d%s)", name, s.PID, since)
	default: // StateStarting or StateStopping
		return fmt.Sprintf("%s is %s (process %d%s)", name, s.State, s.PID, since)
	}
}

// lastEnd says how and when the last run ended.
func (s *Status) lastEnd(now time.Time) string {
	switch {
	case s.Failure != "":
		return fmt.Sprintf(": it ended %s ago, since %s", ageText(now, s.EndedAt), s.Failure)
	case !s.EndedAt.IsZero():
		return fmt.Sprintf(", since %s ago", ageText(now, s.EndedAt))
	case !s.StartedAt.IsZero():
		return ": it was killed, or the host went down"
	}
	return ""
}

func ageText(now, then time.Time) string { return duration.HumanDuration(max(0, now.Sub(then))) }

func (s *Status) printBasics(text *bytes.Buffer, now time.Time) {
	table := tabwriter.NewWriter(text, 0, 0, 3, ' ', 0)
	row := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(table, "  %s\t%s\n", name, printable.Line(fmt.Sprintf(format, args...)))
	}
	row("data dir", "%s", s.DataDir)
	if s.Disk != nil {
		row("disk", "%s free of %s", bytesize.Format(s.Disk.FreeBytes), bytesize.Format(s.Disk.TotalBytes))
	}
	if u := s.Store; u != nil {
		row("store", "objects use %s of %s; etcd's file is %s, of which %s is in use", bytesize.Format(u.Objects), bytesize.Format(u.Quota), bytesize.Format(u.File), bytesize.Format(u.InUse))
	}
	if s.API != nil && s.API.Error != "" {
		row("API", "%s: %s", cmp.Or(s.API.URL, "unknown"), s.API.Error)
	} else if s.API != nil {
		row("API", "%s (Kubernetes %s)", s.API.URL, s.API.Version)
	}
	if l := s.Leader; l != nil {
		row("leader", "%s, renewed %s ago", l.Identity, ageText(now, l.RenewedAt))
	}
	if s.VMs != nil {
		row("VMs", "%s", s.VMs)
	}
	_ = table.Flush()
}

// String returns the numbers by phase.
func (v *VMs) String() string {
	if v.Total == 0 {
		return "none"
	}
	parts := make([]string, 0, len(v.Phases))
	for _, phase := range v.sortedPhases() {
		parts = append(parts, fmt.Sprintf("%d %s", v.Phases[phase], cmp.Or(phase, "not observed yet")))
	}
	return strings.Join(parts, ", ")
}

func (s *Status) printDrivers(text *bytes.Buffer) {
	if len(s.Drivers) == 0 {
		return
	}
	table := tabwriter.NewWriter(text, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(table, "\nDRIVER\tENGINE\tVERSION\tSTATE\tRUNNING\tORPHANS\tRETAINED")
	for _, d := range s.Drivers {
		running, orphans, retained := fmt.Sprintf("%d/%d", d.Running, d.Servers), "?", fmt.Sprint(d.Retained)
		if d.Orphans != nil {
			orphans = fmt.Sprint(*d.Orphans)
		}
		if d.Error != "" {
			running, orphans, retained = "?", "?", "?"
		}
		_, engine, _ := strings.Cut(doctor.ShortName(engines.Engine{Driver: d.Driver, ID: d.EngineID}), "/")
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", printable.Line(d.Driver), printable.Line(engine), printable.Line(cmp.Or(d.Version, "-")), d.stateText(), running, orphans, retained)
	}
	_ = table.Flush()
}

// stateText returns the state of a driver in one or two words.
func (d Driver) stateText() string {
	switch {
	case d.Error != "":
		return "no answer"
	case d.IsOff:
		return "not in use"
	case d.IsDefault:
		return "default"
	}
	return "answers"
}

// printWarnings prints one line for each warning. drover doctor prints their meaning and how to fix them.
func (s *Status) printWarnings(text *bytes.Buffer, style findings.Style) error {
	all := s.Warnings
	for _, d := range s.Drivers {
		if d.Error != "" {
			f := findings.Warning("%s", d.Error)
			f.Name = d.Driver
			all = append(all, f)
		}
	}
	if len(all) == 0 {
		return nil
	}
	brief := make([]findings.Finding, 0, len(all))
	for _, f := range all {
		f.Group, f.Meaning, f.Fix, f.Command = "Warnings", "", "", ""
		brief = append(brief, f)
	}
	text.WriteByte('\n')
	return findings.PrintRows(text, brief, style)
}
