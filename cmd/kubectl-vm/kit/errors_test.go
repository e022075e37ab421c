// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"errors"
	"fmt"
	"net/url"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/test/assert"
)

// TestUnreachable checks that an error names the server that does not answer: streams may have another
// one, whose address outlives it.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	o := NewOptions(genericiooptions.NewTestIOStreamsDiscard())
	for name, tc := range map[string]struct{ url, want string }{
		"the cluster": {"https://c:6443/apis/cloudnative.tw", "cannot reach the cluster at https://c:6443: refused"},
		"no cluster":  {defaultServer + "/api", "cannot reach the cluster at http://localhost:8080: refused; no cluster is configured, see --kubeconfig and KUBECONFIG"},
		"streams":     {"https://s:9444" + streamsapi.Path("n", "web", streamsapi.Log), "cannot reach the streams of VMs at https://s:9444, the address in ConfigMap kube-system/drover-streams: refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := fmt.Errorf("log: %w", &url.Error{Op: "Get", URL: tc.url, Err: errors.New("refused")})
			got := o.DescribeError(err)
			assert.True(t, got == tc.want, "got %q, want %q", got, tc.want)
		})
	}
}
