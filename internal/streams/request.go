// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
)

// kind has the verb that a kind of stream is authorized by, and the function that serves it.
type kind struct {
	verb  string
	serve func(*call) error
}

var kinds = map[streams.Stream]kind{
	streams.Console:     {"create", (*call).serveConsole},
	streams.Exec:        {"create", (*call).serveExec},
	streams.PortForward: {"create", (*call).servePort},
	streams.Log:         {"get", (*call).serveLog},
	streams.Interfaces:  {"get", (*call).serveInterfaces},
	streams.Decisions:   {"get", nil}, // serveRequest serves these without a server
}

// parsePath sets the call's namespace, name and stream from the path, and returns the function that serves
// the stream.
func (c *call) parsePath() (serve func(*call) error, err error) {
	path, below := strings.CutPrefix(c.r.URL.Path, streams.PathPrefix+"/")
	parts := strings.Split(path, "/")
	if !below || len(parts) != 5 || parts[0] != "namespaces" || parts[2] != "virtualmachines" {
		return nil, newStatusError(http.StatusNotFound, metav1.StatusReasonNotFound, "no stream has this path: the path must be %s", streams.Path("NAMESPACE", "NAME", "STREAM"))
	}
	c.namespace, c.name, c.stream = parts[1], parts[3], streams.Stream(parts[4])
	if faults := validation.ValidateNamespaceName(c.namespace, false); len(faults) > 0 {
		return nil, badRequest("the namespace is %.70q: %s", c.namespace, faults[0])
	}
	if faults := validation.NameIsDNSSubdomain(c.name, false); len(faults) > 0 {
		return nil, badRequest("the VirtualMachine's name is %.260q: %s", c.name, faults[0])
	}
	k, ok := kinds[c.stream]
	if !ok {
		return nil, newStatusError(http.StatusNotFound, metav1.StatusReasonNotFound, "the stream is %.70q: it must be %s, %s, %s, %s, %s or %s",
			string(c.stream), streams.Console, streams.Exec, streams.PortForward, streams.Log, streams.Interfaces, streams.Decisions)
	}
	if c.r.Method != http.MethodGet {
		return nil, methodError(c.r.Method)
	}
	return k.serve, nil
}

// parameters reads the parameters of the URL, and keeps the first error. It ignores unknown parameters, as the
// API server does.
type parameters struct {
	url.Values
	err error
}

// readFlag reads a boolean parameter. A missing parameter is false.
func (p *parameters) readFlag(name string) bool {
	if !p.Has(name) {
		return false
	}
	value, err := strconv.ParseBool(p.Get(name))
	p.checkValue(name, "true or false", err)
	return value
}

// readNumber reads a parameter that is a number from least to most. It returns nil if the parameter is missing.
func (p *parameters) readNumber(name string, least, most int64) *int64 {
	if !p.Has(name) {
		return nil
	}
	value, err := strconv.ParseInt(p.Get(name), 10, 64)
	if err == nil && (value < least || value > most) {
		err = strconv.ErrRange
	}
	p.checkValue(name, fmt.Sprintf("a number from %d to %d", least, most), err)
	return &value
}

func (p *parameters) checkValue(name, allowed string, err error) {
	if err != nil && p.err == nil {
		p.err = badRequest("parameter %s is %.70q: it must be %s", name, p.Get(name), allowed)
	}
}
