// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"path/filepath"

	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"

	"cloudnative.tw/drover/standalone/internal/kubeconfig"
)

// controllerNames returns the controllers on which Drover's users rely. With them, the deletion of a
// namespace deletes its content, the deletion of an owner deletes its dependents, service
// accounts get tokens, the roles admin, edit and view aggregate other roles, and quotas are kept.
func controllerNames() []string {
	return []string{
		names.NamespaceController,
		names.GarbageCollectorController,
		names.ServiceAccountController,
		names.ServiceAccountTokenController,
		names.ClusterRoleAggregationController,
		names.ResourceQuotaController,
	}
}

func (c *Config) controllerManagerArgs(kubeconfig string) []string {
	args := []string{
		"--kubeconfig=" + kubeconfig,
		"--secure-port=0",
		"--leader-elect=false",
		"--use-service-account-credentials=true",
		"--service-account-private-key-file=" + c.Keys.ServiceAccountKey(),
		"--root-ca-file=" + c.Keys.CABundle(),
		"--profiling=false",
	}
	for _, name := range controllerNames() {
		args = append(args, "--controllers="+name)
	}
	return args
}

func (c *Config) runControllerManager(ctx context.Context) error {
	path := filepath.Join(c.Dir.Run(), "controller-manager.kubeconfig")
	if err := kubeconfig.WriteForPrograms(path, c.URL(), c.Keys.CABundle(), c.Keys.ControllerManager()); err != nil {
		return err
	}
	s, err := options.NewKubeControllerManagerOptions()
	if err != nil {
		return err
	}
	known, off, aliases := app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases()
	if err := parseFlags("kube-controller-manager", s.Flags(known, off, aliases), c.controllerManagerArgs(path)); err != nil {
		return err
	}
	config, err := s.Config(ctx, known, off, aliases)
	if err != nil {
		return err
	}
	return app.Run(ctx, config.Complete())
}
