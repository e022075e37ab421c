//go:build tools

package drover

import (
	_ "github.com/fsnotify/fsnotify"
	_ "github.com/moby/moby/api/types"
	_ "github.com/moby/moby/client"
	_ "github.com/prometheus/client_golang/prometheus"
	_ "github.com/spf13/cobra"
	_ "k8s.io/api/core/v1"
	_ "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	_ "k8s.io/client-go/kubernetes"
	_ "k8s.io/component-base/version"
	_ "sigs.k8s.io/controller-runtime"
)
