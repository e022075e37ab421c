// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package login

import (
	"cmp"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
)

// BypassProxy makes this process and its child processes connect to the API server directly, whatever
// HTTPS_PROXY says: a proxy on another host could not reach an API server on this host. Connections to
// other servers do not change.
//
// It must be called before the first request of the process, since net/http reads the environment once.
// It uses the environment, because kube-apiserver's client of itself, kube-controller-manager and kubectl
// have no other setting in common.
func BypassProxy(server string) error {
	u, err := url.Parse(server)
	if err != nil {
		return err
	}
	if u.Host == "" {
		return fmt.Errorf("the address %q of the API server does not name a host", server)
	}
	direct := cmp.Or(os.Getenv("NO_PROXY"), os.Getenv("no_proxy")) // net/http has the same order
	hosts := strings.FieldsFunc(direct, func(r rune) bool { return r == ',' })
	if slices.Contains(hosts, u.Host) {
		return nil
	}
	return os.Setenv("NO_PROXY", strings.Join(append(hosts, u.Host), ","))
}
