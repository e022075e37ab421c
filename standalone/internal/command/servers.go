// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/standalone/internal/datadir"
	"cloudnative.tw/drover/standalone/internal/doctor"
	"cloudnative.tw/drover/standalone/internal/engines"
)

// server is a server of an engine.
type server struct {
	driver.Server
	engine engines.Engine
}

// serverJSON is a server as JSON.
type serverJSON struct {
	Driver    string       `json:"driver"`
	EngineID  string       `json:"engineID"`
	UID       types.UID    `json:"uid"`
	ID        string       `json:"id"`
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	State     driver.State `json:"state"`
	StartedAt time.Time    `json:"startedAt,omitzero"`
}

// environment is for looking at the engines of a cluster.
func (p Program) environment(cluster string) driver.Environment {
	return driver.Environment{ClusterID: cluster, Clock: p.Clock, Log: logr.Discard()}
}

// clusterOf returns the cluster's id of an installation, which has been ready once.
func clusterOf(dir datadir.Layout) (string, error) {
	found, err := dir.Exists()
	if err == nil && !found {
		err = fmt.Errorf("%s is no Drover data dir", dir)
	}
	if err != nil {
		return "", err
	}
	cluster, err := dir.ClusterID()
	if err == nil && cluster == "" {
		err = fmt.Errorf("%s: this Drover has never been ready, so it has no servers", dir)
	}
	return cluster, err
}

// findServers returns the servers of the installation, and the engines that did not answer,
// which may have more.
func (p Program) findServers(ctx context.Context, dir datadir.Layout, cluster string) (all []server, silent []engines.Surveyed, err error) {
	surveyed, err := engines.Survey(ctx, dir.Engines(), p.environment(cluster))
	if err != nil {
		return nil, nil, err
	}
	for _, e := range surveyed {
		if e.Err != nil {
			silent = append(silent, e)
		}
		for _, s := range e.Servers {
			all = append(all, server{s, e.Engine})
		}
	}
	slices.SortStableFunc(all, func(a, b server) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return all, silent, nil
}

// warnSilent prints which engines did not answer.
func warnSilent(out io.Writer, silent []engines.Surveyed) {
	for _, e := range silent {
		_, _ = fmt.Fprintf(out, "drover: %s does not answer, and its servers are missing here: %v\n", doctor.ShortName(e.Engine), e.Err)
	}
}

// keyColumn is the first column of a table of servers, by which users name them.
type keyColumn struct {
	header string
	of     func(server) string
}

// The keys of servers: orphans have a UID that no other server has, and released ones an ID.
var (
	keyUID = keyColumn{"UID", func(s server) string { return string(s.UID) }}
	keyID  = keyColumn{"ID", func(s server) string { return shortID(s.ID) }}
)

// printServers prints a table, or JSON.
func (p Program) printServers(out io.Writer, all []server, key keyColumn, format outputFormat, none string) error {
	if format == outputJSON {
		described := make([]serverJSON, 0, len(all))
		for _, s := range all {
			described = append(described, serverJSON{s.engine.Driver, s.engine.ID, s.UID, s.ID, s.Namespace, s.Name, s.State, s.StartedAt})
		}
		return printJSON(out, described)
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(out, none)
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintf(table, "%s\tDRIVER\tVM\tSTATE\tAGE\n", key.header)
	for _, s := range all {
		age := "-"
		if !s.StartedAt.IsZero() {
			age = duration.HumanDuration(p.Clock.Since(s.StartedAt))
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s/%s\t%s\t%s\n", key.of(s), s.engine.Driver, s.Namespace, s.Name, s.State, age)
	}
	return table.Flush()
}

// shortID returns the beginning of an id, which is enough to name a server.
func shortID(id string) string {
	const shown = 12
	return id[:min(len(id), shown)]
}

// ErrDeclined ends a command that a person has declined.
var ErrDeclined = errors.New("nothing was removed")

// Confirm asks a question. No answer, for example from a script without --yes, means no.
func Confirm(in io.Reader, out io.Writer, question string) error {
	_, _ = fmt.Fprintf(out, "%s [y/N] ", question)
	answer, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	_, _ = fmt.Fprintln(out)
	return ErrDeclined
}

func countServers(n int) string {
	if n == 1 {
		return "1 server"
	}
	return fmt.Sprintf("%d servers", n)
}
