// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"os"

	"k8s.io/client-go/tools/clientcmd"

	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/internal/login"
)

// droverName and droverVerb are how cmd/drover-launcher calls this program in the place of drover vm.
const (
	droverName = "drover"
	droverVerb = "vm"
)

// actAsDrover makes this program drover vm of a user who logs in at the Drover service of this host.
func actAsDrover(o *kit.Options, launcher string) {
	o.Program, o.Kubectl, o.Self = "drover vm", "drover kubectl", []string{launcher, droverVerb}
	o.DefaultKubeconfig = login.NewClient(os.Getenv, o.Clock).PersonalKubeconfig
}

// findLoginKubeconfig returns the kubeconfig with which the user logs in at the Drover service of this host, or "" if the
// user has another cluster, or the host lacks such a service.
func findLoginKubeconfig(o *kit.Options) (string, error) {
	c := login.NewClient(os.Getenv, o.Clock)
	_, err := os.Stat(clientcmd.RecommendedHomeFile)
	if err == nil || *o.Config.APIServer != "" || !c.IsDefault(os.Getenv) {
		return "", nil
	}
	return c.PersonalKubeconfig()
}
