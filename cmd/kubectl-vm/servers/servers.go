// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package servers shows the servers of an installation that no VirtualMachine owns, or that
// were released, and has those without an owner removed. It is for the verbs orphans and
// retained, in a cluster and on a host; where the servers come from is their callers' matter.
//
// Start with Look; orphans.go has the removal.
package servers

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/rest"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
)

// Server is a server of an engine.
type Server struct {
	Driver   string `json:"driver"`
	EngineID string `json:"engineID"`

	streams.Server
}

// Engine names an engine.
type Engine struct{ Driver, ID string }

// Look is the result of reading the engines and, after that, the API.
type Look struct {
	// Servers has the servers of the engines in Answered.
	Servers  []Server
	Answered []Engine
	// Owners are the UIDs of all VirtualMachines.
	Owners map[types.UID]bool
	// Drivers are those that the controller runs.
	Drivers []string
	// Core is a client of the API's core group.
	Core rest.Interface
}

// Orphans returns the servers that no VirtualMachine owns.
func (l *Look) Orphans() []Server {
	return l.selectServers(func(s Server) bool { return s.MayBeOrphan && !l.Owners[s.UID] })
}

// Retained returns the servers that were released.
func (l *Look) Retained() []Server { return l.selectServers(func(s Server) bool { return s.Retained }) }

func (l *Look) selectServers(keep func(Server) bool) []Server {
	return slices.DeleteFunc(slices.Clone(l.Servers), func(s Server) bool { return !keep(s) })
}

// Key is the first column of a table of servers, by which users name them.
type Key struct {
	header string
	// Of returns the key of a server.
	Of func(Server) string
}

// The keys of servers: orphans have a UID that no other server has, and released ones an ID.
var (
	ByUID = Key{"UID", func(s Server) string { return string(s.UID) }}
	ByID  = Key{"ID", func(s Server) string { return ShortID(s.ID) }}
)

// ShortID returns an id, or the beginning of a long one, as docker ps has it, which is enough to
// name a server. A pod's is its namespace and name, whose end matters.
func ShortID(id string) string {
	const long, short = 20, 12
	if len(id) <= long || strings.Contains(id, "/") {
		return id
	}
	return id[:short]
}

// What is printed instead of an empty table.
const (
	NoOrphans  = "Every server has a VirtualMachine."
	NoRetained = "No servers were released."
)

// PrintTable prints a table for people, or none if there are no servers.
func PrintTable(out io.Writer, all []Server, key Key, now time.Time, none string) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(out, none)
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintf(table, "%s\tDRIVER\tVM\tSTATE\tAGE\n", key.header)
	for _, s := range all {
		age := "-"
		if !s.StartedAt.IsZero() {
			age = duration.HumanDuration(now.Sub(s.StartedAt))
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", printable.Line(key.Of(s)), printable.Line(s.Driver), nameOf(s), printable.Line(s.State), age)
	}
	return table.Flush()
}

// PrintJSON prints servers as JSON.
func PrintJSON(out io.Writer, all []Server) error {
	return printable.JSON(out, append([]Server{}, all...))
}

func nameOf(s Server) string { return printable.Line(s.Namespace + "/" + s.Name) }

// Count returns a number of things, such as servers.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// IsYes reports whether the answer to a question is yes.
func IsYes(answer string) bool {
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes"
}
