// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package servers shows the servers of an installation that no VirtualMachine owns, or that
// were released, and approves the removal of servers without an owner. It is for the verbs
// orphans and retained of kubectl vm and of drover, which read the servers themselves.
//
// Start with Snapshot. orphans.go has the removal.
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

// Snapshot has the servers of the engines, and the VirtualMachines that were read after them.
type Snapshot struct {
	// Servers are the servers of the engines in Answered.
	Servers  []Server
	Answered []Engine
	// Owners are the UIDs of all VirtualMachines.
	Owners map[types.UID]bool
	// Drivers are the drivers that the controller runs.
	Drivers []string
	// Core is a client of the API's core group.
	Core rest.Interface
}

// Orphans returns the servers that no VirtualMachine owns.
func (s *Snapshot) Orphans() []Server {
	return s.selectServers(func(server Server) bool { return server.MayBeOrphan && !s.Owners[server.UID] })
}

// Retained returns the servers that were released.
func (s *Snapshot) Retained() []Server {
	return s.selectServers(func(server Server) bool { return server.Retained })
}

func (s *Snapshot) selectServers(isSelected func(Server) bool) []Server {
	return slices.DeleteFunc(slices.Clone(s.Servers), func(server Server) bool { return !isSelected(server) })
}

// Key is the first column of a table of servers, by which users name a server.
type Key struct {
	header  string
	valueOf func(Server) string
}

// The keys of servers. The UID identifies an orphan, and the ID a released server.
var (
	ByUID = Key{"UID", func(s Server) string { return string(s.UID) }}
	ByID  = Key{"ID", func(s Server) string { return ShortID(s.ID) }}
)

// ShortID returns an ID, or the beginning of a long ID, which is enough to name a server, as in docker ps.
// It does not cut the ID of a pod, which is the pod's namespace and name.
func ShortID(id string) string {
	const maxLength, shortLength = 20, 12
	if len(id) <= maxLength || strings.Contains(id, "/") {
		return id
	}
	return id[:shortLength]
}

// Texts that are printed instead of an empty table.
const (
	NoOrphans  = "Every server has a VirtualMachine."
	NoRetained = "No servers were released."
)

// PrintTable prints a table for people, or emptyText if there are no servers.
func PrintTable(out io.Writer, all []Server, key Key, now time.Time, emptyText string) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(out, emptyText)
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintf(table, "%s\tDRIVER\tVM\tSTATE\tAGE\n", key.header)
	for _, s := range all {
		age := "-"
		if !s.StartedAt.IsZero() {
			age = duration.HumanDuration(now.Sub(s.StartedAt))
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", printable.Line(key.valueOf(s)), printable.Line(s.Driver), nameOf(s), printable.Line(s.State), age)
	}
	return table.Flush()
}

// PrintJSON prints servers as JSON.
func PrintJSON(out io.Writer, all []Server) error {
	return printable.JSON(out, append([]Server{}, all...))
}

func nameOf(s Server) string { return printable.Line(s.Namespace + "/" + s.Name) }

// Count returns a number with a noun in the singular or plural, such as "2 servers".
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
