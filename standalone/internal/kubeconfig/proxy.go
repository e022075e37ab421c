// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeconfig

import (
	"cmp"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
)

// BypassProxy has this process and those that it starts connect to an API server of this host
// directly, whatever HTTPS_PROXY says: a proxy elsewhere would not reach it. Other servers are
// not affected. It must be called before the first request of the process, since net/http reads
// the environment once. The environment is the only place that kube-apiserver's client of itself,
// kube-controller-manager and kubectl all look at.
func BypassProxy(server string) error {
	u, err := url.Parse(server)
	if err != nil {
		return err
	}
	if u.Host == "" {
		return fmt.Errorf("the address %q of the API server does not name a host", server)
	}
	direct := cmp.Or(os.Getenv("NO_PROXY"), os.Getenv("no_proxy")) // in the order of net/http
	hosts := strings.FieldsFunc(direct, func(r rune) bool { return r == ',' })
	if slices.Contains(hosts, u.Host) {
		return nil
	}
	return os.Setenv("NO_PROXY", strings.Join(append(hosts, u.Host), ","))
}
