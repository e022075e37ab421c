// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"

	"cloudnative.tw/drover/cmd/kubectl-vm/findings"
	"cloudnative.tw/drover/standalone/internal/kubeconfig"
)

// ClientConfig returns the client configuration in the data dir's kubeconfig.
func (h *Host) ClientConfig() (*rest.Config, error) {
	config, err := kubeconfig.Read(h.Layout.Kubeconfig())
	if err != nil {
		return nil, err
	}
	config.Timeout = findings.DefaultTimeout
	config.UserAgent = "drover/" + h.Version
	return config, nil
}

// FailedChecks returns the failed checks of /readyz, or "" if there are none.
func FailedChecks(ctx context.Context, client rest.Interface) string {
	text, err := client.Get().AbsPath("/readyz").Param("verbose", "").DoRaw(ctx)
	if err == nil {
		return ""
	}
	var failed []string
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "[-]"); ok {
			name, _, _ = strings.Cut(name, " ")
			failed = append(failed, name)
		}
	}
	if len(failed) == 0 {
		return err.Error()
	}
	return strings.Join(failed, ", ")
}

// Name and namespace of the Lease of `drover up`.
const (
	leaseName      = "drover-controller"
	leaseNamespace = metav1.NamespaceDefault
)

// Lease reads the Lease by which the controller leads. It returns nil if there is none.
func Lease(ctx context.Context, config *rest.Config) (*coordinationv1.Lease, error) {
	client, err := coordination.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	lease, err := client.Leases(leaseNamespace).Get(ctx, leaseName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // Nil is for none.
	}
	return lease, err
}
