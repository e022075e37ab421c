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

	"github.com/go-logr/logr"

	"cloudnative.tw/drover/cmd/kubectl-vm/servers"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/streams"
	"cloudnative.tw/drover/standalone/internal/datadir"
	"cloudnative.tw/drover/standalone/internal/doctor"
	"cloudnative.tw/drover/standalone/internal/engines"
)

// server is a server with its engine.
type server struct {
	driver.Server
	engine engines.Engine
}

// environment returns the environment in which drivers survey the engines of a cluster.
func (p Program) environment(cluster string) driver.Environment {
	return driver.Environment{ClusterID: cluster, Clock: p.Clock, Log: logr.Discard()}
}

// clusterOf returns the cluster ID of an installation. It fails if the installation has never been ready.
func clusterOf(dir datadir.Layout) (string, error) {
	found, err := dir.Exists()
	if err == nil && !found {
		err = fmt.Errorf("%s is not a Drover data dir", dir)
	}
	if err != nil {
		return "", err
	}
	cluster, err := dir.ClusterID()
	if err == nil && cluster == "" {
		err = fmt.Errorf("%s: this Drover has never been ready, so there are no servers", dir)
	}
	return cluster, err
}

// findServers returns the servers of the installation, and its engines. Engines that did not answer may
// have more servers.
func (p Program) findServers(ctx context.Context, dir datadir.Layout, cluster string) (all []server, surveyed []engines.Surveyed, err error) {
	surveyed, err = engines.Survey(ctx, dir.Engines(), p.environment(cluster))
	if err != nil {
		return nil, nil, err
	}
	for _, e := range surveyed {
		for _, s := range e.Servers {
			all = append(all, server{s, e.Engine})
		}
	}
	slices.SortStableFunc(all, func(a, b server) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return all, surveyed, nil
}

// warnSilent prints a warning for each engine that did not answer.
func warnSilent(out io.Writer, surveyed []engines.Surveyed) {
	for _, e := range surveyed {
		if e.Err != nil {
			_, _ = fmt.Fprintf(out, "drover: %s does not answer, so its servers are missing here: %v\n", doctor.ShortName(e.Engine), e.Err)
		}
	}
}

// describeServers converts servers to the type that the verbs of kubectl vm print.
func describeServers(all []server) []servers.Server {
	described := make([]servers.Server, len(all))
	for i, s := range all {
		described[i] = servers.Server{Driver: s.engine.Driver, EngineID: s.engine.ID, Server: streams.DescribeServer(s.Server)}
	}
	return described
}

// printServers prints a table, or JSON.
func (p Program) printServers(out io.Writer, all []servers.Server, key servers.Key, format outputFormat, none string) error {
	if format == outputJSON {
		return servers.PrintJSON(out, all)
	}
	return servers.PrintTable(out, all, key, p.Clock.Now(), none)
}

// ErrDeclined means that the user has not confirmed a removal.
var ErrDeclined = errors.New("nothing was removed")

// Confirm asks a question, and returns ErrDeclined unless the answer is yes. No answer, for example from a
// script without --yes, means no.
func Confirm(in io.Reader, out io.Writer, question string) error {
	_, _ = fmt.Fprintf(out, "%s [y/N] ", question)
	answer, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if servers.IsYes(answer) {
		return nil
	}
	_, _ = fmt.Fprintln(out)
	return ErrDeclined
}
