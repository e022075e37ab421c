// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/guest/report"
	"cloudnative.tw/drover/internal/policy/decisions"
)

// serveServers answers with all servers, if the user may list all of them.
func (c *call) serveServers(ctx context.Context) error {
	if c.r.Method != http.MethodGet {
		return methodError(c.r.Method)
	}
	c.stream, c.began = streams.Servers, c.Clock.Now()
	ctx, cancel := context.WithTimeout(ctx, c.times.open)
	defer cancel()
	if err := c.authorizeAs(ctx, authorizer.AttributesRecord{
		User: c.user, Verb: "list", APIGroup: resource.Group, APIVersion: api.SchemeGroupVersion.Version,
		Resource: resource.Resource, Subresource: streams.Servers, ResourceRequest: true,
	}); err != nil {
		return err
	}
	err := c.writeJSON(listServers(ctx, c.Drivers))
	c.logStream(err)
	return err
}

// writeJSON answers with a value in JSON.
func (c *call) writeJSON(value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	c.answered = true
	setHeader(c.w, "application/json")
	_, err = responseBody{c}.Write(text)
	return err
}

// listServers asks all engines at the same time. In the list, an engine that does not answer has an error.
func listServers(ctx context.Context, drivers map[string]driver.Driver) streams.ServerList {
	names := slices.Sorted(maps.Keys(drivers))
	list := streams.ServerList{Drivers: make([]streams.DriverServers, len(names))}
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() { list.Drivers[i] = describeEngine(ctx, name, drivers[name]) })
	}
	all.Wait()
	return list
}

func describeEngine(ctx context.Context, name string, d driver.Driver) streams.DriverServers {
	described := streams.DriverServers{Driver: name, Servers: []streams.Server{}}
	identifier, ok := driver.As[driver.Identifier](d)
	if !ok { // without the ID, clients could take these servers for those of another engine
		described.Error = "the driver does not report its engine's ID"
		return described
	}
	servers, err := d.List(ctx)
	if err == nil {
		described.EngineID, err = identifier.EngineID(ctx)
	}
	if err != nil {
		described.Error = statusOf(err).Message
		return described
	}
	for _, s := range servers {
		described.Servers = append(described.Servers, DescribeServer(s))
	}
	return described
}

// DescribeServer converts a server to its form in the streams API.
func DescribeServer(s driver.Server) streams.Server {
	described := streams.Server{
		UID: s.UID, ID: s.ID, Namespace: s.Namespace, Name: s.Name, State: string(s.State), StartedAt: s.StartedAt,
		Retained: s.Retained, MayBeOrphan: s.MayBeOrphan(),
	}
	if s.Err != nil {
		described.Error = s.Err.Error()
	}
	return described
}

func methodError(method string) error {
	return newStatusError(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "the method is %.20q: it must be GET", method)
}

// serveInterfaces responds with the network interfaces that the server reports, or with statistics of
// its network if the parameter statistics is true.
func (c *call) serveInterfaces() error {
	p := parameters{Values: c.r.URL.Query()}
	statistics := p.readFlag("statistics")
	if p.err != nil {
		return p.err
	}
	ctx, cancel := context.WithTimeout(c.ctx, c.times.open)
	defer cancel()
	if statistics {
		return c.serveStatistics(ctx)
	}
	lister, err := capability[driver.InterfaceLister](c)
	if err != nil {
		return err
	}
	list, err := lister.Interfaces(ctx, c.vm.UID)
	if err != nil {
		return err
	}
	if list == nil {
		list = []report.Interface{}
	}
	return c.writeJSON(list)
}

func (c *call) serveStatistics(ctx context.Context) error {
	reporter, err := capability[driver.NetworkReporter](c)
	if err != nil {
		return err
	}
	n, err := reporter.NetworkStatistics(ctx, c.vm.UID)
	if err != nil {
		return err
	}
	return c.writeJSON(n)
}

// serveDecisions responds with the decisions of this replica about an existing VirtualMachine. It leaves
// out decisions about an earlier VirtualMachine of the same name, since the namespace may have belonged
// to another tenant.
func (c *call) serveDecisions(ctx context.Context) error {
	if err := c.findVM(ctx); err != nil {
		return err
	}
	c.began = c.Clock.Now()
	history := c.Decisions(types.NamespacedName{Namespace: c.namespace, Name: c.name})
	history.Decisions = slices.DeleteFunc(history.Decisions, func(r decisions.Record) bool { return r.Input.VM.UID != c.vm.UID })
	err := c.writeJSON(history)
	c.logStream(err)
	return err
}
