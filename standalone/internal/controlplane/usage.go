// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"encoding/json"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"cloudnative.tw/drover/standalone/internal/storekeeper"
)

// serveUsage serves the usage of the store to cluster admins, behind kube-apiserver's
// authentication and authorization, and as metrics.
func (c *Config) serveUsage(server *aggregator.APIAggregator) {
	server.GenericAPIServer.Handler.NonGoRestfulMux.UnlistedHandleFunc(storekeeper.UsagePath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(c.usage.Get())
	})
	for name, gauge := range map[string]struct {
		help  string
		value func(storekeeper.Usage) int64
	}{
		"drover_store_object_bytes":     {"Size of all objects of the API.", func(u storekeeper.Usage) int64 { return u.Objects }},
		"drover_store_quota_bytes":      {"Size that all objects of the API may have.", func(u storekeeper.Usage) int64 { return u.Quota }},
		"drover_store_history_bytes":    {"Size of replaced and deleted objects that etcd still has.", func(u storekeeper.Usage) int64 { return u.History }},
		"drover_store_file_bytes":       {"Size of etcd's file.", func(u storekeeper.Usage) int64 { return u.File }},
		"drover_store_in_use_bytes":     {"Size of the part of etcd's file that is not free.", func(u storekeeper.Usage) int64 { return u.InUse }},
		"drover_store_file_limit_bytes": {"Size of etcd's file from which on etcd refuses all writes.", func(u storekeeper.Usage) int64 { return u.FileLimit }},
	} {
		_ = metrics.Registry.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: gauge.help}, func() float64 {
			return float64(gauge.value(c.usage.Get()))
		}))
	}
	_ = metrics.Registry.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "drover_store_refused_writes_total", Help: "Writes that were refused to keep room for other namespaces.",
	}, func() float64 { return float64(c.usage.Get().Refused) }))
}
